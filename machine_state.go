package hangar

import "slices"

// MachineState is where a Machine is in its life. What documentation of
// the public platform calls "running" is MachineStarted, as on the wire.
type MachineState string

// The states of a Machine.
const (
	MachineCreated    MachineState = "created"    // recorded; being prepared
	MachineStarting   MachineState = "starting"   // booting or resuming
	MachineStarted    MachineState = "started"    // its main process runs
	MachineStopping   MachineState = "stopping"   // asked to end
	MachineStopped    MachineState = "stopped"    // prepared, not running
	MachineSuspending MachineState = "suspending" // memory is being written
	MachineSuspended  MachineState = "suspended"  // memory is on disk
	MachineRestarting MachineState = "restarting" // ended, about to start again
	MachineReplacing  MachineState = "replacing"  // an update is being put in place
	MachineFailed     MachineState = "failed"     // could not be prepared or booted
	MachineDestroying MachineState = "destroying" // being removed
	MachineDestroyed  MachineState = "destroyed"  // gone; only its record remains for a while
)

// machineTransitions is the whole life of a Machine: from each state, the states
// that may follow it.
//
//	created → starting → started → stopping → stopped
//	              ↑         │ ↘ suspending → suspended → starting
//	              └─ restarting, replacing (an update of a started Machine)
//
// Any state but destroyed may turn into destroying, and destroying only into
// destroyed.
var machineTransitions = map[MachineState][]MachineState{
	MachineCreated:    {MachineStarting, MachineStopped, MachineFailed, MachineDestroying},
	MachineStarting:   {MachineStarted, MachineStopping, MachineStopped, MachineRestarting, MachineFailed, MachineDestroying},
	MachineStarted:    {MachineStopping, MachineStopped, MachineSuspending, MachineRestarting, MachineReplacing, MachineDestroying},
	MachineStopping:   {MachineStopped, MachineRestarting, MachineDestroying},
	MachineStopped:    {MachineStarting, MachineReplacing, MachineFailed, MachineDestroying},
	MachineSuspending: {MachineSuspended, MachineStarted, MachineStopped, MachineRestarting, MachineDestroying},
	MachineSuspended:  {MachineStarting, MachineStopped, MachineReplacing, MachineDestroying},
	MachineRestarting: {MachineStarting, MachineStopping, MachineStopped, MachineReplacing, MachineFailed, MachineDestroying},
	MachineReplacing:  {MachineStarting, MachineStopped, MachineStarted, MachineSuspended, MachineFailed, MachineDestroying},
	MachineFailed:     {MachineStarting, MachineStopped, MachineReplacing, MachineDestroying},
	MachineDestroying: {MachineDestroyed},
	MachineDestroyed:  nil,
}

// MachineStates lists every state, in the order of a Machine's life.
func MachineStates() []MachineState {
	return []MachineState{
		MachineCreated, MachineStarting, MachineStarted, MachineStopping, MachineStopped, MachineSuspending,
		MachineSuspended, MachineRestarting, MachineReplacing, MachineFailed, MachineDestroying, MachineDestroyed,
	}
}

// CanBecome reports whether a Machine in state s may turn into next. A state may
// not follow itself.
func (s MachineState) CanBecome(next MachineState) bool {
	return slices.Contains(machineTransitions[s], next)
}

// Valid reports whether s is one of MachineStates.
func (s MachineState) Valid() bool {
	_, ok := machineTransitions[s]
	return ok
}

// machineReach is, for each state, every state that a Machine may be in later.
var machineReach = reachOf(machineTransitions)

func reachOf(transitions map[MachineState][]MachineState) map[MachineState]map[MachineState]bool {
	reach := make(map[MachineState]map[MachineState]bool, len(transitions))
	for from := range transitions {
		seen, todo := map[MachineState]bool{}, []MachineState{from}
		for len(todo) > 0 {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, next := range transitions[at] {
				if !seen[next] {
					seen[next] = true
					todo = append(todo, next)
				}
			}
		}
		reach[from] = seen
	}
	return reach
}

// AtRest reports whether a Machine in state s needs no memory until it is started.
func (s MachineState) AtRest() bool { return s.Settled() && s != MachineStarted }

// CanReach reports whether a Machine in state s may be in state later, after any
// number of steps.
func (s MachineState) CanReach(later MachineState) bool { return machineReach[s][later] }

// Settled reports whether the Machine stays in s until a user or the platform acts.
func (s MachineState) Settled() bool {
	switch s {
	case MachineStarted, MachineStopped, MachineSuspended, MachineFailed, MachineDestroyed:
		return true
	default:
		return false
	}
}

// Verb is something that a user asks of a Machine.
type Verb string

// The verbs that depend on a Machine's state.
const (
	VerbStart   Verb = "start"
	VerbStop    Verb = "stop"
	VerbSuspend Verb = "suspend"
	VerbRestart Verb = "restart"
	VerbUpdate  Verb = "update"
	VerbExec    Verb = "exec" // and signal and ps
	VerbDestroy Verb = "destroy"
	VerbLease   Verb = "lease"
	// VerbAnnotate changes how a Machine is found and used, but not the Machine itself: cordon,
	// uncordon and writes of metadata.
	VerbAnnotate Verb = "annotate"
)

// Answer says how a Machine responds to a verb.
type Answer int

// The answers.
const (
	Refuse  Answer = iota // the state forbids it
	Accept                // do it
	Already               // nothing to do: it is done, or under way
)

// machineAnswers says what each verb does in each state; a state that is missing
// refuses.
var machineAnswers = map[Verb]map[MachineState]Answer{
	VerbStart: {
		MachineStopped: Accept, MachineSuspended: Accept, MachineFailed: Accept,
		MachineStarting: Already, MachineStarted: Already, MachineRestarting: Already,
	},
	VerbStop: {
		MachineStarted: Accept, MachineStarting: Accept, MachineRestarting: Accept, MachineSuspended: Accept,
		MachineStopping: Already, MachineStopped: Already, MachineFailed: Already,
	},
	VerbSuspend: {MachineStarted: Accept, MachineSuspending: Already, MachineSuspended: Already},
	VerbRestart: {
		MachineStarted: Accept, MachineStopped: Accept, MachineSuspended: Accept, MachineFailed: Accept,
		MachineRestarting: Already,
	},
	VerbUpdate: {
		MachineStarted: Accept, MachineStopped: Accept, MachineSuspended: Accept, MachineFailed: Accept,
		MachineRestarting: Accept,
	},
	VerbExec: {MachineStarted: Accept},
	VerbLease: {
		MachineCreated: Accept, MachineStarting: Accept, MachineStarted: Accept, MachineStopping: Accept,
		MachineStopped: Accept, MachineSuspending: Accept, MachineSuspended: Accept, MachineRestarting: Accept,
		MachineReplacing: Accept, MachineFailed: Accept,
	},
	VerbAnnotate: {
		MachineCreated: Accept, MachineStarting: Accept, MachineStarted: Accept, MachineStopping: Accept,
		MachineStopped: Accept, MachineSuspending: Accept, MachineSuspended: Accept, MachineRestarting: Accept,
		MachineReplacing: Accept, MachineFailed: Accept,
	},
	VerbDestroy: {
		MachineCreated: Accept, MachineStopped: Accept, MachineSuspended: Accept, MachineFailed: Accept,
		MachineStarted: Accept, MachineStarting: Accept, MachineStopping: Accept, MachineSuspending: Accept,
		MachineRestarting: Accept, MachineReplacing: Accept,
		MachineDestroying: Already, MachineDestroyed: Already,
	},
}

// Answers says what a Machine in state s does when asked v. Destroying one that
// is not stopped also needs force, which is not a matter of the state alone; see
// NeedsForce.
func (s MachineState) Answers(v Verb) Answer { return machineAnswers[v][s] }

// NeedsForce reports whether a Machine in state s is destroyed only with force.
func (s MachineState) NeedsForce() bool {
	switch s {
	case MachineStarting, MachineStarted, MachineStopping, MachineSuspending, MachineRestarting, MachineReplacing:
		return true
	default:
		return false
	}
}
