package mcp

import (
	"slices"
	"strings"
)

// Allows says whether the operator lets a method through that longcall does not know
// . extensions are by name, with their methods, of requests and of
// notifications; one that ends in * stands for all that begin so. Methods of the
// protocol itself are never let through so: of those, what is not served is not there.
func Allows(extensions map[string][]string, method string) bool {
	if len(extensions) == 0 || ofProtocol(method) {
		return false
	}
	for _, methods := range extensions {
		if slices.ContainsFunc(methods, func(pattern string) bool { return matchMethod(pattern, method) }) {
			return true
		}
	}
	return false
}

func ofProtocol(method string) bool {
	switch group, _, _ := strings.Cut(method, "/"); group {
	case "initialize", "ping", "server", "tools", "prompts", "resources", "completion", "logging", "tasks", "subscriptions",
		"sampling", "elicitation", "roots":
		return true
	case "notifications": // extensions have theirs beside those of the protocol
		switch method {
		case MethodInitialized, MethodCancelled, MethodProgress, MethodMessage, MethodToolsChanged, MethodPromptsChanged, MethodResourcesChanged,
			MethodUpdated, MethodAcknowledged, MethodRootsChanged, MethodElicited, "notifications/tasks", "notifications/tasks/status":
			return true
		}
	}
	return false
}

// matchMethod compares a method with one of the config, which may end in *.
func matchMethod(pattern, method string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(method, prefix)
	}
	return pattern == method
}
