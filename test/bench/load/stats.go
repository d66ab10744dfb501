package load

import (
	"math"
	"slices"
	"time"
)

// Metrics are the numbers of one side; a missing key means "does not apply".
type Metrics map[string]float64

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func mib(n int64) float64        { return float64(n) / (1 << 20) }

// quantile sorts d. It returns milliseconds, and NaN if there is nothing.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return math.NaN()
	}
	slices.Sort(d)
	return ms(d[min(int(float64(len(d))*q), len(d)-1)])
}

// quantiles adds name_p50 and name_p99.
func (m Metrics) quantiles(name string, d []time.Duration) {
	m[name+"_p50"] = quantile(d, .50)
	m[name+"_p99"] = quantile(d, .99)
}

// clean drops what JSON cannot carry.
func (m Metrics) clean() Metrics {
	for k, v := range m {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(m, k)
		}
	}
	return m
}

func ratios(peer, floor Metrics) Metrics {
	r := Metrics{}
	for k, v := range peer {
		if f, ok := floor[k]; ok && f > 0 {
			r[k] = v / f
		}
	}
	return r
}

// spread is the larger over the smaller value of the same metric in two slices
// of the same side: how noisy the machine was.
func spread(a, b Metrics) Metrics {
	s := Metrics{}
	for k, x := range a {
		if y := b[k]; x > 0 && y > 0 {
			s[k] = max(x, y) / min(x, y)
		}
	}
	return s
}
