// Package environments has the task environments that are built in. The file of an
// environment's name describes its task on the kits: what a task's data is, which
// tools there are, what an answer is worth. Beside it, or at its end, is a scripted
// model that plays it, so that a whole dataset runs on a machine that has nothing
// else. Another model may take the script's place.
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
// Each has a dataset of its name in testdata. What task_data has, where "?" is what
// may be left out:
//
//	weather     city                  whose weather is asked for
//	workplace   expected              tool calls, each {"tool", "arguments"}, after which the tables are as they should be
//	            tables?               rows in addition to the office's, or in place of the ones of their ids, by table
//	            outage?               tables (calendar, email, projects) whose provider is down: the sample is masked,
//	                                  whether the model needed them or not
//	filings     figure                the number that is asked for
//	            unit?, company?       its unit, and whose it is
//	            tolerance?            relative, from 0 to below 1 (default 0.01)
//	            time_budget_seconds?  after which filings are not parsed and searched any more
//	            ttl_seconds?          after which the session has expired
//	            unreadable?           filings whose source fails: the sample of a model that asked for one is masked
package environments
