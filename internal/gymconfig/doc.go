// Package gymconfig reads how a NeMo Gym run is configured: one mapping of all its
// server instances, as Gym hands it to the processes that it starts and as its head
// server serves it.
//
//	config, err := gymconfig.Parse(text)              // or Fetch, or FromEnvironment
//	weather, err := config.Environment("weather_env") // an environment server's own part
//
// An instance's name stands at the top level; the key below it says what kind of server
// it is, and the one below that which implementation:
//
//	weather_env:
//	  environment_servers:
//	    single_agent_turn:
//	      host: 127.0.0.1
//	      …
//
// The mapping holds secrets, such as the key of a model's API. Errors say where
// something is wrong and repeat no value but names, hosts and numbers of the
// environment server's own part.
package gymconfig
