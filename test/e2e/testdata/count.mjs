// Counts requests in memory. Answers "N node".
import { createServer } from 'node:http';

let requests = 0;
const server = createServer((request, response) => {
  if (request.url === '/count') requests++;
  response.end(`${requests} node ${process.version}\n`);
});
server.keepAliveTimeout = 0;
server.listen(8080, '::');
process.on('SIGINT', () => process.exit(0));
