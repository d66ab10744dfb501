//go:build !race

package cases_test

const raceEnabled = false
