package chaos_test

// moreConfig is what the config says for features of which the defaults are too
// slow for a test.
const moreConfig = ""
