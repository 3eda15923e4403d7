// Apache's Go client as a program; its verbs.
package main

import (
	"runtime/debug"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func main() {
	Serve(map[string]Verb{"version": version})
}

func version(Request) (any, error) {
	_ = rmq.NewProducer
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/apache/rocketmq-clients/golang/v5" {
			return module.Version, nil
		}
	}
	return "", nil
}
