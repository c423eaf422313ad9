"""Counts requests in memory. Answers "N python"."""
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

requests = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global requests
        if self.path == "/count":
            requests += 1
        body = f"{requests} python {sys.version.split()[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


Server(("::", 8080), Handler).serve_forever()
