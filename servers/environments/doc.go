// Package environments has the task environments that are built in, one file
// each. Each is a description of its task on the kits: what a task's data is,
// which tools there are, what an answer is worth, and a scripted model that plays
// it, so that a whole dataset runs on a machine that has nothing else. Another model
// may take the script's place.
//
//	filings     the model is asked for one figure out of companies' annual reports, and must find it
//	weather     the model is asked about the weather in a city and must look up that city
//	workplace   the model is to do something in a small office, whose calendar, e-mails and tasks it searches and changes
//
// [Open] makes the two servers of one:
//
//	environment, err := environments.Open("weather", environments.Config{})
//	if err != nil {
//		return err
//	}
//	defer environment.Close(ctx)
//	resources := &http.Server{Handler: environment.Resources}
//	agent := &http.Server{Handler: environment.Agent}
//
// Each has a dataset of its name in testdata.
package environments
