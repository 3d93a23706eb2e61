#!/usr/bin/python3
"""A module on the bus with nothing but Python, openssl and the two files that mesh lays down:
it answers the verb greet, and says the event greeted. The protocol is that of NATS clients:
lines of text, see https://docs.nats.io/reference/reference-protocols/nats-protocol."""
import base64, binascii, json, os, socket, ssl, subprocess, sys, tempfile, time

folder = os.environ["MESH_INSTANCE"]
with open(os.path.join(folder, "credential.json")) as f:
    credential = json.load(f)
with open(os.path.join(folder, "membership.json")) as f:
    membership = json.load(f)


class Key:
    """An NKEY: base32 of two bytes of kind, the 32 of an Ed25519 seed, and a checksum."""

    def __init__(self, seed):
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[2:34]
        self.der = bytes.fromhex("302e020100300506032b657004220420") + raw  # PKCS #8
        public = self.openssl("pkey", "-pubout", "-outform", "DER", "-inform", "DER", "-in", "/dev/stdin")[-32:]
        body = bytes([20 << 3]) + public
        self.public = base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")

    def openssl(self, *args, data=None):
        return subprocess.run(["openssl", *args], input=data or self.der, stdout=subprocess.PIPE, check=True).stdout

    def sign(self, text):
        with tempfile.NamedTemporaryFile() as f:  # openssl signs Ed25519 from a file alone
            f.write(text)
            f.flush()
            out = self.openssl("pkeyutl", "-sign", "-rawin", "-keyform", "DER", "-inkey", "/dev/stdin", "-in", f.name)
        return base64.urlsafe_b64encode(out).decode().rstrip("=")


class Bus:
    def __init__(self, address, key):
        host, port = address.rsplit(":", 1)
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
        line = b""
        while not line.endswith(b"\r\n"):  # byte by byte: what follows is TLS
            line += plain.recv(1) or sys.exit("the bus hung up")
        info = json.loads(line.split(b" ", 1)[1])
        trust = ssl.create_default_context(cadata=credential["bus"]["ca"])
        self.conn = trust.wrap_socket(plain, server_hostname="bus.mesh.internal")
        self.conn.settimeout(None)
        self.read = self.conn.makefile("rb")
        self.send("CONNECT", json.dumps({"verbose": False, "pedantic": False, "tls_required": True, "lang": "python", "version": "1", "protocol": 1,
                                         "headers": True, "no_responders": True, "nkey": key.public, "sig": key.sign(info["nonce"].encode())}))
        self.send("PING")

    def send(self, *words, data=None):
        line = " ".join(words).encode() + b"\r\n"
        self.conn.sendall(line if data is None else line + data + b"\r\n")

    def publish(self, subject, value, reply=""):
        data = json.dumps(value).encode()
        self.send("PUB", subject, *([reply] if reply else []), str(len(data)), data=data)

    def messages(self):
        """Yields (subscription, reply, data) of each message."""
        while True:
            line = self.read.readline().decode().strip()
            if not line:
                raise OSError("the bus hung up")
            word, *rest = line.split(" ")
            if word == "PING":
                self.send("PONG")
            elif word == "-ERR":
                print("the bus says:", line, file=sys.stderr)
            elif word in ("MSG", "HMSG"):  # HMSG has the header's length before the whole one
                total, head = int(rest[-1]), int(rest[-2]) if word == "HMSG" else 0
                data = self.read.read(total + 2)[head:-2]
                reply = rest[2] if len(rest) > (4 if word == "HMSG" else 3) else ""
                yield rest[1], reply, data


def work():
    bus = Bus(credential["bus"]["addresses"][0], Key(credential["seed"]))
    inbox = membership["inbox"] + ".acks"
    bus.send("SUB", inbox, "acks")
    for i, verb in enumerate(membership["serves"]):
        if verb.get("at"):
            bus.send("SUB", verb["at"], f"at{i}")
        if verb.get("plain"):
            bus.send("SUB", verb["plain"], verb["queue"], f"plain{i}")
    event = next(e["at"] for e in membership["says"] if e["name"] == "greeted")
    print("serving", flush=True)
    for sid, reply, data in bus.messages():
        if sid == "acks":
            print("acknowledged:", data.decode(), flush=True)
        elif reply.startswith("_R_."):  # anything else is no ask: an answer that somebody aimed here
            name = json.loads(data or b"{}").get("name")
            if not name:
                bus.publish(reply, {"failed": "name: is missing"})
                continue
            bus.publish(reply, {"answer": {"greeting": f"Hello, {name}, from {membership['node']}"}})
            bus.publish(event, {"name": name}, inbox)


while True:  # a new instance is let in a moment after its machine has said its key
    try:
        work()
    except (OSError, ssl.SSLError) as e:
        print("no bus:", e, file=sys.stderr, flush=True)
        time.sleep(1)
