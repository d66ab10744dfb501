package config

import _ "embed"

//go:embed defaults.yaml
var defaultsYAML string

// Defaults is a commented YAML file with every key and its default. Parsed, it
// gives Default.
func Defaults() string { return defaultsYAML }
