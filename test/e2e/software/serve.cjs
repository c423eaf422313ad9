// Serves what nginx does not: a WebSocket that echoes at /echo, and server-sent events at /events, each of which comes once
// a request to /next asks for it.
const { createServer } = require('node:http');
const { WebSocketServer } = require('ws');

let readers = [];
const server = createServer((request, response) => {
  if (request.url === '/events') {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    response.write('data: begins\n\n');
    readers.push(response);
    return;
  }
  if (request.url === '/next' && request.method === 'POST') {
    let text = '';
    request.on('data', (piece) => { text += piece; });
    request.on('end', () => {
      for (const reader of readers) reader.write(`data: ${text}\n\n`);
      if (text === 'ends') {
        for (const reader of readers) reader.end();
        readers = [];
      }
      console.log(`event ${text}`);
      response.end('ok\n');
    });
    return;
  }
  response.end(`node ${process.version}\n`);
});
server.keepAliveTimeout = 0;

new WebSocketServer({ server, path: '/echo', maxPayload: 64 << 20 }).on('connection', (socket) => {
  socket.on('message', (data, binary) => socket.send(data, { binary }));
});
server.listen(8080, '::');
process.on('SIGINT', () => process.exit(0));
