package softbench

import (
	"context"
	"io"
)

func RunPressure(context.Context, Options) error                  { return nil }
func serviceWorker(context.Context, io.Writer, []string) error    { return nil }
func antagonistWorker(context.Context, io.Writer, []string) error { return nil }
