// Package feed has what clients are told without having asked: messages of the channels to which they have subscribed
// ([Channels]), and lines of MONITOR. Both go to the [Feed] of a client, from which its driver takes them when the replies before them
// are on their way.
//
// # Files
//
// feed, channels, line (MONITOR).
package feed
