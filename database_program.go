package hangar

// DatabaseProgram is where a Machine finds hangar-db, a node of replicated databases, which its host has. It
// is there for Machines with a command that names it.
const DatabaseProgram = "/.hangar/bin/hangar-db"
