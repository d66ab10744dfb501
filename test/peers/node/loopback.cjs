// Loaded with --require: a server that would listen on all interfaces listens on 127.0.0.1 instead. It changes the inner
// _listen2, not listen(), because listen(port, host) resolves the name first and code that asks for address() at once breaks.
const net = require('net');
const inner = net.Server.prototype._listen2;
net.Server.prototype._listen2 = function (address, port, type, ...rest) {
  if (typeof port === 'number' && port >= 0 && [null, undefined, '::', '0.0.0.0'].includes(address)) {
    return inner.call(this, '127.0.0.1', port, 4, ...rest);
  }
  return inner.call(this, address, port, type, ...rest);
};
