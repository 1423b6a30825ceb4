module a.kubelith.io/csigates

go 1.26.6

require (
	k8s.io/apimachinery v0.37.1
	k8s.io/apiserver v0.37.1
	k8s.io/component-base v0.37.1
)
