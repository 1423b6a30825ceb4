package results

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Median of values; NaN when there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// Interval is a confidence interval of the median from order statistics: the narrowest pair of the k-th
// smallest and the k-th largest value that holds the true median with at least 95 %, whatever the
// distribution (the sign test turned round). For seven values that is minimum and maximum, at 98.4 %.
// ok is false when there are too few values, which is fewer than six.
func Interval(values []float64) (low, high float64, ok bool) {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	best := -1
	for k := 0; k < n/2; k++ {
		// Outside the interval when at most k of n values fall on one side: twice the binomial tail.
		tail := 0.0
		for i := 0; i <= k; i++ {
			tail += choose(n, i)
		}
		if 1-2*tail/math.Pow(2, float64(n)) >= 0.95 {
			best = k
		}
	}
	if best < 0 {
		return 0, 0, false
	}
	return v[best], v[n-1-best], true
}

func choose(n, k int) float64 {
	c := 1.0
	for i := range k {
		c = c * float64(n-i) / float64(i+1)
	}
	return c
}

// resamples is how often RatioInterval draws; the seed is fixed, so that the same samples give the same table.
const resamples = 10000

// RatioInterval is the 95 % percentile bootstrap interval of median(a) / median(b), each resampled on its
// own. ok is false when either has fewer than six values.
func RatioInterval(a, b []float64) (low, high float64, ok bool) {
	if len(a) < 6 || len(b) < 6 {
		return 0, 0, false
	}
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(from, into []float64) float64 {
		for i := range into {
			into[i] = from[r.IntN(len(from))]
		}
		return Median(into)
	}
	ratios := make([]float64, resamples)
	as, bs := make([]float64, len(a)), make([]float64, len(b))
	for i := range ratios {
		ratios[i] = draw(a, as) / draw(b, bs)
	}
	slices.Sort(ratios)
	return ratios[resamples*25/1000], ratios[resamples*975/1000-1], true
}

// Percentile is the value that p percent of the values do not exceed; NaN when there are none.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p / 100 * float64(len(v)))) // from 1
	return v[max(rank, 1)-1]
}

// Quantile of a histogram whose buckets count the values up to a bound, by linear interpolation in a bucket, as
// Prometheus does it. A quantile beyond the last finite bound is that bound. ok is false when there are no values.
func Quantile(buckets map[float64]float64, q float64) (value float64, ok bool) {
	bounds := slices.Sorted(maps.Keys(buckets))
	if len(bounds) == 0 || buckets[bounds[len(bounds)-1]] == 0 {
		return 0, false
	}
	rank := q * buckets[bounds[len(bounds)-1]]
	var low, below float64
	for _, bound := range bounds {
		n := buckets[bound]
		if n >= rank {
			if math.IsInf(bound, 1) {
				return low, true
			}
			return low + (bound-low)*(rank-below)/(n-below), true
		}
		low, below = bound, n
	}
	return low, true
}
