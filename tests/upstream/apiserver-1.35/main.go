// The kube-apiserver of an earlier Kubernetes, made from its Go module, for the tests of a node that is newer than its API server.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
}
