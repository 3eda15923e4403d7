package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// Request is one line of the test's: {"verb": NAME, …}.
type Request map[string]any

// Verb does one thing that a test asks for.
type Verb func(Request) (any, error)

// Serve answers the requests that stdin has, one by one; what the client prints goes to stderr
// (tests/kit/clients/program.py has the talk).
func Serve(verbs map[string]Verb) {
	out := os.Stdout
	os.Stdout = os.Stderr
	answer := func(line map[string]any) {
		text, err := json.Marshal(line)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(out, "%s\n", text)
	}
	answer(map[string]any{"ok": "ready"})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		request := Request{}
		if err := json.Unmarshal(in.Bytes(), &request); err != nil {
			panic(err)
		}
		verb, known := verbs[request["verb"].(string)]
		if !known {
			answer(map[string]any{"error": "no such verb", "type": "NoVerb"})
			continue
		}
		value, err := verb(request)
		if err != nil {
			answer(map[string]any{"error": err.Error(), "type": fmt.Sprintf("%T", err)})
		} else {
			answer(map[string]any{"ok": value})
		}
	}
	os.Exit(0) // clients leave threads behind
}
