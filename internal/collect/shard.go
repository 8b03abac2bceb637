package collect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Shard is the part of a dataset that one of several runs has: the tasks whose
// index is Part-1 modulo Of, all their repeats together. The zero value is the
// whole dataset.
type Shard struct{ Part, Of int }

// ParseShard reads "3/16"; "auto", the place in a Slurm job array; and "auto/16",
// the place in a Kubernetes Indexed Job of 16. getenv is os.Getenv.
func ParseShard(text string, getenv func(string) string) (Shard, error) {
	if text == "auto" {
		return slurmShard(getenv)
	}
	part, of, ok := strings.Cut(text, "/")
	if !ok {
		return Shard{}, fmt.Errorf("%q is not a shard: want i/n, such as 3/16, auto (Slurm) or auto/n (Kubernetes)", text)
	}
	var s Shard
	var err error
	if s.Of, err = strconv.Atoi(of); err != nil {
		return Shard{}, fmt.Errorf("%q is not a shard: %q is no number", text, of)
	}
	if part == "auto" {
		index, err := number(getenv, "JOB_COMPLETION_INDEX", "is this a pod of an Indexed Job?")
		if err != nil {
			return Shard{}, err
		}
		s.Part = index + 1
	} else if s.Part, err = strconv.Atoi(part); err != nil {
		return Shard{}, fmt.Errorf("%q is not a shard: %q is no number", text, part)
	}
	return s, s.check()
}

// slurmShard is the place of this task in its job array, from the first of its
// indexes on.
func slurmShard(getenv func(string) string) (Shard, error) {
	const hint = "is this a task of a Slurm job array?"
	id, err1 := number(getenv, "SLURM_ARRAY_TASK_ID", hint)
	least, err2 := number(getenv, "SLURM_ARRAY_TASK_MIN", hint)
	count, err3 := number(getenv, "SLURM_ARRAY_TASK_COUNT", hint)
	step := 1
	var err4 error
	if getenv("SLURM_ARRAY_TASK_STEP") != "" {
		step, err4 = number(getenv, "SLURM_ARRAY_TASK_STEP", hint)
	}
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Shard{}, err
	}
	s := Shard{Part: (id-least)/max(step, 1) + 1, Of: count}
	if err := s.check(); err != nil || (id-least)%max(step, 1) != 0 {
		return Shard{}, fmt.Errorf("task %d of a Slurm job array of %d from %d on, step %d, has no place among them: the array's indexes must be evenly spaced, as in --array=0-15", id, count, least, step)
	}
	return s, nil
}

func number(getenv func(string) string, name, hint string) (int, error) {
	text := getenv(name)
	if text == "" {
		return 0, fmt.Errorf("--shard auto: %s is not set: %s", name, hint)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("--shard auto: %s is %q, which is no number", name, text)
	}
	return n, nil
}

func (s Shard) check() error {
	if s.Of < 1 || s.Part < 1 || s.Part > s.Of {
		return fmt.Errorf("there is no shard %d of %d", s.Part, s.Of)
	}
	return nil
}

// has reports whether the shard has the task of that index.
func (s Shard) has(task int64) bool {
	return s.Of == 0 || task%int64(s.Of) == int64(s.Part-1)
}

// IsWhole reports whether the shard is the whole dataset, unsharded.
func (s Shard) IsWhole() bool { return s.Of == 0 }

// Output is the name of the shard's rollouts file for a run with that output:
// rollouts.shard-03-of-16.jsonl for rollouts.jsonl. Names of shards sort by part.
func (s Shard) Output(output string) string {
	if s.IsWhole() {
		return output
	}
	width := max(2, len(strconv.Itoa(s.Of)))
	return fmt.Sprintf("%s.shard-%0*d-of-%0*d.jsonl", strings.TrimSuffix(output, ".jsonl"), width, s.Part, width, s.Of)
}

var shardName = regexp.MustCompile(`^(.*)\.shard-(\d{1,9})-of-(\d{1,9})\.jsonl$`)

// A division is a dataset in so many shards, and the output that they are parts of.
type division struct {
	output string
	of     int
}

func (d division) compare(other division) int {
	return cmp.Or(cmp.Compare(d.output, other.output), cmp.Compare(d.of, other.of))
}

// shardOf is the shard whose rollouts file has that name.
func shardOf(path string) (d division, s Shard, ok bool) {
	match := shardName.FindStringSubmatch(path)
	if match == nil {
		return division{}, Shard{}, false
	}
	s.Part, _ = strconv.Atoi(match[2]) // digits, and few
	s.Of, _ = strconv.Atoi(match[3])
	return division{match[1] + ".jsonl", s.Of}, s, s.check() == nil
}

// missingShards are the rollouts files of shards that the names of others speak of.
// Two divisions of one output are noted: one of them may be left from another run.
func missingShards(paths []string, note func(string)) []string {
	there := map[division]map[Shard]bool{}
	spelled := map[string]string{} // outputs, however their folders are named
	for _, path := range paths {
		d, shard, ok := shardOf(path)
		if !ok {
			continue
		}
		output := resolved(d.output)
		if spelled[output] == "" {
			spelled[output] = d.output
		}
		d.output = output
		if there[d] == nil {
			there[d] = map[Shard]bool{}
		}
		there[d][shard] = true
	}
	var missing []string
	divided := map[string]int{} // outputs, and into how many shards
	for _, d := range slices.SortedFunc(maps.Keys(there), division.compare) {
		output := spelled[d.output]
		if of := divided[d.output]; of > 0 {
			note(fmt.Sprintf("there are shards of %s by %d and by %d: some may be left from another run", output, of, d.of))
		}
		divided[d.output] = d.of
		for part := 1; part <= d.of; part++ {
			if shard := (Shard{Part: part, Of: d.of}); !there[d][shard] {
				missing = append(missing, shard.Output(output))
			}
		}
	}
	return missing
}

// resolved is a path whose folder is named as the file system has it.
func resolved(path string) string {
	folder, err := filepath.Abs(filepath.Dir(path))
	if err == nil {
		folder, err = filepath.EvalSymlinks(folder)
	}
	if err != nil {
		return path
	}
	return filepath.Join(folder, filepath.Base(path))
}
