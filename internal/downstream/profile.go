package downstream

import "time"

// Profile is how patient one agent host is. Budgets count from the agent's
// request; zero means no bound.
type Profile struct {
	Name string // for log lines
	// Budget is how long a tools/call may stay without an answer if it came
	// without a progress token, BudgetToken if it came with one. Then it is
	// handed off.
	Budget, BudgetToken time.Duration
	// Tasks says whether tasks, of either generation, are offered at all.
	Tasks bool
	// TaskBudget is the same for a request that declared the tasks extension;
	// never above the budgets.
	TaskBudget time.Duration
	// Await is how long await_call waits if nobody says otherwise, AwaitToken
	// with a progress token; never above the budgets.
	Await, AwaitToken time.Duration
}

// profile is the one of whoever sends this request.
func (x *exchange) profile(client string) Profile {
	if f := x.h.opt.Profile; f != nil {
		return f(x.q.Principal, x.server, client)
	}
	return Profile{Tasks: true}
}
