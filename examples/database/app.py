"""Notes in a SQLite database: GET / lists them, POST / adds the body as one.

It does not know about replicas: it opens a file. hangar-db runs beside it, with its proxy in front.
"""

import os
import sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATABASE = os.environ.get("DATABASE", "/data/dbs/notes.db")


def connect():
    db = sqlite3.connect(DATABASE, timeout=10, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    return db


class Notes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        try:
            db = connect()
            table = db.execute("SELECT name FROM sqlite_master WHERE name = 'notes'").fetchone()
            rows = db.execute("SELECT id, text FROM notes ORDER BY id").fetchall() if table else []
            db.close()
        except sqlite3.OperationalError as e:
            self.answer(503, f"{e} ({e.sqlite_errorname})\n")
            return
        self.answer(200, "".join(f"{id} {text}\n" for id, text in rows))

    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        try:
            db = connect()
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)")
            id = db.execute("INSERT INTO notes (text) VALUES (?)", (text,)).lastrowid
            db.close()
        except sqlite3.OperationalError as e:
            self.answer(503, f"{e} ({e.sqlite_errorname})\n")  # the primary is changing: the client retries
            return
        self.answer(201, f"{id}\n")

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    os.makedirs(os.path.dirname(DATABASE), exist_ok=True)
    ThreadingHTTPServer(("", int(os.environ.get("PORT", "8081"))), Notes).serve_forever()
