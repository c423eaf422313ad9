# Runs a file of testfixture in a directory of a database node, which is flat, and where each database has files that tell
# about it: the tests make a directory for temporary files, and delete what is called like a database.
rename file kernel_file
proc file {command args} {
  switch -- $command {
    mkdir {
      if {[string match "tempdir*" [lindex $args 0]]} { return }
    }
    delete {
      set kept {}
      foreach name $args {
        if {![regexp {(-pos|-synced|-lock)$} $name]} { lappend kept $name }
      }
      set args $kept
    }
  }
  uplevel 1 [list kernel_file $command {*}$args]
}
rename glob kernel_glob
proc glob {args} {
  set found {}
  foreach name [uplevel 1 [list kernel_glob {*}$args]] {
    if {![regexp {(-pos|-synced|-lock)$} $name]} { lappend found $name }
  }
  return $found
}
rename sqlite3 path_sqlite3
proc sqlite3 {args} {
  # Another way to test.db, through directories.
  if {[string match "*/tempdir/*test.db*" [lindex $args 1]]} { lset args 1 ./test.db }
  uplevel 1 [list path_sqlite3 {*}$args]
}
set argv0 [lindex $argv 0]
set argv [lrange $argv 1 end]
source $argv0
