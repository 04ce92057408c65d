"""A tenant of a share that means ill. It tries what it is ordered to try, and prints what came of it, one line a try.

Orders are a file that the scene replaces: `{"serial": 7, "attempt": "quit_daemon", "facts": {...}}`. The facts are what a
tenant of a cluster cannot easily learn, such as process ids of the host: this one knows them. Each try is a process of its own
with a time limit, so that nothing of a try is left for the next one. Whether a neighbour was hurt is not for this program to say.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import attempts
import attempts_cuda

SECONDS = 12  # The longest that a try may take.

def attempt(function, facts, sender):
    """One try, in a process of its own, the first of its group."""
    os.setsid()
    notes = attempts.Notes()
    try:
        function(facts, notes)
    except subprocess.TimeoutExpired:
        notes.say("no answer")
    except Exception as error:  # A tenant that fails has tried.
        notes.say(f"{type(error).__name__}: {error}")
    sender.send(str(notes))


def tried(function, facts):
    """What came of a try."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=attempt, args=(function, facts, sender))
    process.start()
    # Else a child that dies would be waited for.
    sender.close()
    try:
        said = receiver.recv() if receiver.poll(SECONDS) else f"not over after {SECONDS} s"
    except EOFError:
        said = "its process was killed"
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass  # It has ended, with all its group.
    process.join()
    reap()
    return said


def reap():
    """Takes in the children's children: this is the first process of its container."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def order(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def named(attempt):
    """What an order calls so."""
    return getattr(attempts, attempt, None) or getattr(attempts_cuda, attempt)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", help="whose orders it takes; and so that it is found among the machine's processes")
    parser.add_argument("--then", help="what a program of its own does with CUDA")
    parser.add_argument("--facts", type=json.loads)
    args = parser.parse_args()
    if args.then:
        try:
            return getattr(attempts_cuda, args.then)(args.facts)
        except (attempts_cuda.Refused, OSError) as refused:
            return print(f"refused ({refused})")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with open("/proc/self/uid_map") as file:
        users = [line.split() for line in file]
    print("READY " + json.dumps({"user": os.getuid(), "users": users}), flush=True)
    done = 0
    while True:
        ordered = order(f"/job/{args.name}.json")
        if ordered and ordered["serial"] > done:
            done = ordered["serial"]
            said = tried(named(ordered["attempt"]), ordered["facts"])
            print("TRIED " + json.dumps({"serial": done, "said": said}), flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
