package hangar

// DatabaseProgram is the path at which a Machine finds the host's hangar-db, a node of replicated
// databases. It exists in Machines with a command that names it.
const DatabaseProgram = "/.hangar/bin/hangar-db"
