//go:build race

package cases_test

const raceEnabled = true
