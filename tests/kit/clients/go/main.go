// Apache's Go client as a program; its verbs.
package main

import (
	"os"
	"runtime/debug"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func main() {
	// The client would log into a folder of the root: `user.home` is no variable of a shell.
	os.Setenv(rmq.CLIENT_LOG_ROOT, os.Getenv("HOME")+"/logs")
	rmq.ResetLogger()
	verbs := Messaging()
	verbs["version"] = version
	Serve(verbs)
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
