// Package requests says what is wrong with a request to a server kit, in the
// shapes that drivers read (section 4 of the protocol).
//
// There are two. [Invalid] is a body that is not what the route takes: it is
// answered with 422 and FastAPI's list of faults, and is final. A [Refusal] is
// everything else that has a status of its own: a conflict, a session that is
// gone, a provider that failed. An error that is neither is answered with 500.
//
// [Read] takes an object apart field by field and collects every fault on the
// way, so that a caller learns all of them at once:
//
//	fields := requests.Read(task.Data, "body", "task_data")
//	city := fields.Text("city")
//	if err := fields.Err(); err != nil {
//		return err
//	}
//
// It is a room of its own because both kits and the environments on them, ours
// and other people's, word their refusals with it.
package requests
