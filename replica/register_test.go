package replica_test

import (
	"bufio"
	"database/sql"
	"fmt"
	"os"
	"strings"
)

// swaps replaces the value of a register, row 1 of a table that it creates, with each line that it
// reads, and adds a row to t. It prints the result: "acked OLD", "refused" if nothing has happened,
// or "unknown".
func (j workerJob) swaps() error {
	lines := bufio.NewScanner(os.Stdin)
	var db *sql.DB
	for lines.Scan() {
		if db == nil {
			var err error
			if db, err = open(j.Path+j.query(), ""); err != nil {
				return err
			}
			if _, err := db.Exec("PRAGMA busy_timeout=50"); err != nil {
				fmt.Println("refused", err)
				db.Close()
				db = nil
				continue
			}
		}
		answer, again := j.swap(db, lines.Text())
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
		if again { // so that it can be opened for writing
			db.Close()
			db = nil
		}
	}
	return lines.Err()
}

// reads opens the database for each line that it reads, and prints the number of rows of t, or the
// error. The last program to close the database removes its log and index.
func (j workerJob) reads() error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		n, err := j.count()
		if err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
			continue
		}
		fmt.Println(n)
	}
	return lines.Err()
}

func (j workerJob) count() (n int, err error) {
	db, err := open(j.Path, "")
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return n, db.QueryRow("SELECT count(*) FROM t").Scan(&n)
}

// query is the URL query that opens a database.
func (j workerJob) query() string {
	if j.Full {
		return "?_synchronous=FULL"
	}
	return ""
}

func (j workerJob) swap(db *sql.DB, value string) (answer string, again bool) {
	tx, err := db.Begin()
	if err != nil {
		return fmt.Sprint("refused ", err), strings.Contains(err.Error(), "readonly") || strings.Contains(err.Error(), "I/O")
	}
	defer tx.Rollback()
	// The coming transaction is the next one: no other program writes now.
	_, epoch, err := j.says("synced")
	if err != nil {
		return fmt.Sprint("refused ", err), false
	}
	before, _, err := j.says("pos")
	if err != nil {
		return fmt.Sprint("refused ", err), false
	}
	var old string
	err = tx.QueryRow("SELECT v FROM register").Scan(&old)
	if err != nil && strings.Contains(err.Error(), "no such table") {
		_, err = tx.Exec("CREATE TABLE register(v); INSERT INTO register VALUES('')")
	}
	if err != nil {
		return fmt.Sprint("refused ", err), true
	}
	for _, s := range []string{"UPDATE register SET v='" + value + "'", "INSERT INTO t VALUES('" + value + "')"} {
		if _, err := tx.Exec(s); err != nil {
			return fmt.Sprint("refused ", err), true
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Sprint("unknown ", err), true
	}
	// In WAL mode SQLite cannot fail after its commit.
	after, now, err := j.says("synced")
	if err != nil || now != epoch || after <= before {
		return fmt.Sprintf("unknown synced %d %d, epoch %d %d: %v", before, after, epoch, now, err), false
	}
	return "acked " + old, false
}

// says reads a file beside the database: NAME-pos, or NAME-synced.
func (j workerJob) says(file string) (first, second uint64, err error) {
	b, err := os.ReadFile(j.Path + "-" + file)
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscanf(string(b), "%x/%x", &first, &second)
	return first, second, err
}

// ask writes a line to a worker, and returns its answer.
func (w *worker) ask(line string) string {
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		return fmt.Sprint("gone ", err)
	}
	answer, ok := <-w.lines
	if !ok {
		return "gone"
	}
	return answer
}
