// Package load plays agents against a gateway and the floor side by side, and measures what they see.
package load
