package main

import (
	"errors"
	"maps"
	"math"
	"slices"
)

// histogram counts samples in buckets, each 5 % above the one before, as that of the vertical pod autoscaler does. The
// counts are of the samples' weights, which get less with time. Keys are numbers of buckets.
type histogram map[int]float64

const (
	growth   = 1.05
	buckets  = 300   // the last one of the scales below is above 2,000 cores, and 2 TiB
	tooLight = 0.001 // a bucket of less weight is forgotten
)

// scale is the upper end of a histogram's first bucket.
type scale int64

const (
	cpuScale    scale = 1       // a thousandth of a core
	memoryScale scale = 1 << 20 // bytes
)

func (h histogram) add(value int64, s scale) {
	bucket := 0
	if value > int64(s) {
		bucket = min(buckets-1, int(math.Ceil(math.Log(float64(value)/float64(s))/math.Log(growth)-1e-9)))
	}
	h[bucket]++
}

// merge adds another histogram, with its weights multiplied.
func (h histogram) merge(other histogram, factor float64) {
	for bucket, weight := range other {
		h[bucket] += weight * factor
	}
}

// decay multiplies all weights.
func (h histogram) decay(factor float64) {
	for bucket := range h {
		if h[bucket] *= factor; h[bucket] < tooLight {
			delete(h, bucket)
		}
	}
}

func (h histogram) weight() (sum float64) {
	for _, weight := range h {
		sum += weight
	}
	return sum
}

// enough reports whether there are so many samples. Half a sample may be missing, as the last ones are minutes old.
func (h histogram) enough(samples float64) bool { return h.weight() >= samples-0.5 }

// percentile returns a value that is above so many per cent of the samples: the upper end of a bucket.
func (h histogram) percentile(percent float64, s scale) int64 {
	rest := h.weight() * percent / 100
	bucket := 0
	for _, bucket = range slices.Sorted(maps.Keys(h)) {
		if rest -= h[bucket]; rest <= 1e-9 {
			break
		}
	}
	return int64(math.Ceil(float64(s) * math.Pow(growth, float64(bucket))))
}

// check is for a histogram from a file.
func (h histogram) check() error {
	for bucket, weight := range h {
		if bucket < 0 || bucket >= buckets || !(weight > 0 && weight < 1e12) {
			return errors.New("a histogram has a bucket that cannot be")
		}
	}
	return nil
}
