// Package feed has what clients are sent without having asked for it: messages of the channels that they have
// subscribed to ([Channels]), and lines of MONITOR. Both go to the client's [Feed]. The client's driver takes them
// from there when the replies before them are on their way.
//
// # Files
//
// feed, channels, line (MONITOR).
package feed
