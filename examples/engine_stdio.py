"""Drives `dsec-kernel serve --stdio` with nothing but JSON and a pipe, as any language could."""

import json
import subprocess
import sys

kernel = subprocess.Popen(
    [*(sys.argv[1:] or ["dsec-kernel"]), "serve", "--stdio"],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)


def call(number, method, **params):
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    print(json.dumps(request), file=kernel.stdin, flush=True)
    for line in kernel.stdout:
        said = json.loads(line)
        if said.get("id") == number:
            return said["result"]  # or said["error"]: {"code", "message", "data"}
        print("event", said["method"], said["params"])
    raise SystemExit("the kernel is gone")


print("protocol", call(1, "initialize", protocol=1, events=["event.agent"])["protocol"])
agent = {"name": "pole", "env": {"id": "CartPole-v1"}, "policy": {"entry": "any:Name"}}
sandbox = call(2, "sandbox.open", agent=agent, lanes=2)["sandbox"]
for each in call(3, "agents.list")["agents"]:
    print(each["agent"], each["state"])
call(4, "sandbox.close", sandbox=sandbox)
call(5, "shutdown")
print(json.dumps({"jsonrpc": "2.0", "method": "exit"}), file=kernel.stdin, flush=True)
print("exit code", kernel.wait(30))
