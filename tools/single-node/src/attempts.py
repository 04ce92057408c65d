"""What a tenant tries that means ill, without a GPU. Each takes the facts of its order and notes what came of each step.

No try changes a setting of a GPU: where one asks the driver for a mode, it asks for the mode that the GPU has.
"""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time

MIB = 1 << 20
PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
CONTROL = "/job/mps-control"
SHM = "/dev/shm"
HOLD = 1.0  # For how many seconds connections and locks are held.
BUSY = 3.0  # For how many seconds the daemon is kept busy; ten such tries are longer than the agent waits for a daemon.

# From the kernel's headers.
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REMOUNT, MS_BIND, MS_MOVE, MNT_DETACH = 32, 4096, 8192, 2
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
PIDFD_OPEN, PROCESS_VM_READV = 434, 310  # On x86-64.
SCM_CREDENTIALS = 2

libc = ctypes.CDLL(None, use_errno=True)


def system(name, *arguments):
    """A function of the C library, which fails as Python's do."""
    arguments = [argument.encode() if isinstance(argument, str) else argument for argument in arguments]
    result = getattr(libc, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def scratch():
    """A folder of the try's own."""
    for folder in ("/tmp", SHM):
        try:
            own = os.path.join(folder, f"try-{os.getpid()}")
            os.makedirs(own, exist_ok=True)
            return own
        except OSError:
            continue
    return "/nowhere"


def own_mounts(notes):
    """What is mounted from here on is seen by this try alone, so that the next one finds the container as it was."""
    notes.step("own mounts", system, "unshare", CLONE_NEWNS)


class Notes:
    """What the steps of a try came to."""

    def __init__(self):
        self.said = []

    def step(self, what, function, *arguments):
        """Takes a step; whether it was taken."""
        try:
            result = function(*arguments)
        except OSError as error:
            self.say(f"{what}: {errno.errorcode.get(error.errno, error)}")
            return False
        self.say(f"{what}: {'done' if result is None or isinstance(result, int) else result}")
        return True

    def say(self, text):
        if text not in self.said:
            self.said.append(text)

    def __str__(self):
        return "; ".join(self.said)[:600]


def in_child(function):
    """What a function says in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = function()
        except OSError as error:
            said = errno.errorcode.get(error.errno, str(error))
        except subprocess.TimeoutExpired:
            said = "no answer"
        os.write(writer, str(said).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said


def become_nested_root():
    """Root, with all capabilities, of a user namespace and a mount namespace below the tenant's own."""
    user, group = os.getuid(), os.getgid()
    system("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# ---- the control words ----


def words(*lines, patience=8):
    """Says words by the control program that the tenant brought along; what it answers."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": PIPE}
    told = subprocess.run([CONTROL], input="\n".join(lines) + "\n", env=environment, capture_output=True, text=True, timeout=patience)
    return " ".join((told.stdout + told.stderr).split())[:120] or f"nothing said, exit code {told.returncode}"


def set_default_limits(facts, notes):
    notes.say(words("set_default_active_thread_percentage 77", "set_default_device_pinned_mem_limit 0 1G"))


def set_server_limits(facts, notes):
    server = facts["server"]
    notes.say(words(f"set_active_thread_percentage {server} 1", f"set_device_pinned_mem_limit {server} 0 70G"))


def terminate_clients(facts, notes):
    notes.say(words(*[f"terminate_client {facts['server']} {client}" for client in facts["clients"]]))


def shut_down_server(facts, notes):
    notes.say(words(f"shutdown_server {facts['server']} -f"))


def quit_daemon(facts, notes):
    notes.say(words("quit -t 1"))


def quit_as_another_user(facts, notes):
    """As users that the container has, with their groups; in children, for there is no way back."""
    for user in (1, 1000, 65533):

        def become(user=user):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            return words("set_default_active_thread_percentage 77", "quit -t 1")

        notes.say(f"as {user}: {in_child(become)}")


def quit_from_nested_namespace(facts, notes):
    """As root of a user namespace that the tenant makes itself."""

    def become():
        become_nested_root()
        return f"uid {os.getuid()}: {words('set_default_active_thread_percentage 77', 'quit -t 1')}"

    notes.say(in_child(become))


def forge_credentials(facts, notes):
    """The words by hand, with credentials that claim to be the host's root, and the daemon's process id."""
    for path in sockets():
        for whose, process in (("its own", os.getpid()), ("the daemon's", facts["daemon"])):
            with connected(path, notes) as pipe:
                pipe.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                forged = [(socket.SOL_SOCKET, SCM_CREDENTIALS, struct.pack("3i", process, 0, 0))]
                notes.step(f"send as root with {whose} process", pipe.sendmsg, [b"quit -t 1\n"], forged)
        with connected(path, notes) as pipe:
            for line in (b"quit -t 1\n", b"set_default_active_thread_percentage 77\n"):
                notes.step("send", pipe.sendall, line)
            notes.step("receive", lambda: pipe.recv(200).decode(errors="replace").strip() or "nothing")


# ---- the sockets ----


def sockets():
    """The sockets of the pipe folder."""
    names = sorted(os.listdir(PIPE)) if os.path.isdir(PIPE) else []
    paths = [os.path.join(PIPE, name) for name in names]
    return [path for path in paths if os.path.exists(path) and (os.stat(path).st_mode & 0o170000) == 0o140000]


def connected(path, notes):
    """A socket that is connected if one of that path can be, of whatever type it is."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        pipe = socket.socket(socket.AF_UNIX, kind)
        pipe.settimeout(0.2)
        try:
            pipe.connect(path)
            return pipe
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                notes.say(f"connect {os.path.basename(path)}: {errno.errorcode.get(error.errno, error)}")
                return pipe
            pipe.close()
    return socket.socket(socket.AF_UNIX)


def hold_connections(facts, notes):
    """Many connections that say nothing, for a while."""
    held = [connected(path, notes) for path in sockets() for _ in range(64)]
    time.sleep(HOLD)
    notes.say(f"{len(held)} connections held")


def keep_daemon_busy(facts, notes):
    """Silent connections, and words without end: the daemon serves one control client at a time, and the agent is one."""
    held = [connected(path, notes) for path in sockets()]
    until = time.monotonic() + BUSY
    while time.monotonic() < until:
        notes.say(words("get_server_list", patience=BUSY))
    for pipe in held:
        pipe.close()


def send_garbage(facts, notes):
    """What no client would send: zeros, long lines, random bytes."""
    for path in sockets():
        for garbage in (b"\0" * 4096, b"A" * 65536 + b"\n", os.urandom(65536)):
            with connected(path, notes) as pipe:
                notes.step(f"send to {os.path.basename(path)}", pipe.sendall, garbage)


# ---- the files ----


def entries():
    """The pipe folder and what is in it."""
    return [PIPE] + [os.path.join(PIPE, name) for name in (sorted(os.listdir(PIPE)) if os.path.isdir(PIPE) else [])]


def overwrite(path):
    """Writes into it, and empties it."""
    file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(file, b"x\n")
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o777))


def write_pipe_files(facts, notes):
    for path in entries()[1:]:
        notes.step("overwrite", overwrite, path)
    notes.step("create", create, os.path.join(PIPE, "control.new"))
    fake = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    notes.step("listen beside the daemon", fake.bind, os.path.join(PIPE, "control2"))


def remove_pipe_files(facts, notes):
    other = os.path.join(scratch(), "other")
    notes.step("make a file", create, other)
    for path in entries()[1:]:
        notes.step("unlink", os.unlink, path)
        notes.step("rename", os.rename, path, path + ".old")
        notes.step("replace", os.rename, other, path)
    notes.step("rename the folder", os.rename, PIPE, PIPE + ".old")
    notes.step("remove the folder", os.rmdir, PIPE)


def change_modes(facts, notes):
    for path in entries():
        notes.step("chmod", os.chmod, path, 0o777)
        notes.step("chown", os.chown, path, os.getuid(), os.getgid())
        notes.step("utime", os.utime, path, (0, 0))
        notes.step("setxattr", os.setxattr, path, "user.kerf", b"x")


def remount_pipe(facts, notes):
    own_mounts(notes)
    remount(notes, facts)
    notes.step("move", system, "mount", PIPE, scratch(), None, MS_MOVE, None)
    notes.step("unmount", system, "umount2", PIPE, MNT_DETACH)


def remount_from_nested_namespace(facts, notes):
    def become():
        become_nested_root()
        inside = Notes()
        remount(inside, facts)
        return inside

    notes.say(in_child(become))


def remount(notes, facts):
    """Makes the pipe folder writable, and does there what was tried before."""
    notes.step("remount read-write", system, "mount", None, PIPE, None, MS_REMOUNT | MS_BIND, None)
    for then in (write_pipe_files, remove_pipe_files, change_modes):
        then(facts, notes)


def link_tricks(facts, notes):
    inside, outside = os.path.join(PIPE, "link"), os.path.join(scratch(), "link")
    own_mounts(notes)
    notes.step("symlink", os.symlink, "/etc/shadow", inside)
    for path in entries()[1:]:
        notes.step("hard link", os.link, path, inside)
        notes.step("hard link out", os.link, path, outside)
    notes.step("bind over the folder", system, "mount", scratch(), PIPE, None, MS_BIND, None)
    for way in (PIPE + "/../log/daemon.log", PIPE + "/../daemon.pid", facts["pipe"] + "/../log/daemon.log"):
        notes.step("leave the folder by ..", overwrite, way)
    notes.step("chroot", os.chroot, PIPE)


def lock_files(facts, notes):
    held = []
    for path in entries():
        for way in (os.O_RDWR | os.O_NONBLOCK, os.O_RDONLY | os.O_NONBLOCK):
            try:
                file = os.open(path, way)
            except OSError as error:
                notes.say(f"open: {errno.errorcode.get(error.errno, error)}")
                continue
            held.append(file)
            notes.step("flock", fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            notes.step("lock", fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            notes.step("lease", fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    time.sleep(HOLD)


def write_node_files(facts, notes):
    """What the agent, the kubelet and the runtime read."""
    for path in (
        *facts["nodeFiles"],
        "/var/run/cdi/kerf.json",
        "/etc/cdi/kerf.json",
        "/run/kerf/mps/daemon.pid",
        "/var/lib/kerf/record.json",
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "/sys/fs/cgroup/kerf-mps/cgroup.procs",
        "/job/tenant.py",
    ):
        notes.step("overwrite", overwrite, path)
    for path in ("/var/lib/kubelet/device-plugins/kubelet.sock", "/run/containerd/containerd.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
            notes.step("connect the kubelet or containerd", pipe.connect, path)


def fill_shared_memory(facts, notes):
    before = os.statvfs(SHM)
    path, written = os.path.join(SHM, "fill"), 0
    block = b"x" * (4 * MIB)
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 4096 * MIB:
                written += file.write(block)
        notes.say("4 GiB written")
    except OSError as error:
        notes.say(f"{written // MIB} MiB of {before.f_blocks * before.f_frsize // MIB} written: {errno.errorcode[error.errno]}")
    others = [name for name in os.listdir(SHM) if name != "fill" and not name.startswith("try-")]
    notes.say(f"others' files there: {others or 'none'}")
    for way in ("size=90%", "size=0"):
        notes.step("remount larger", system, "mount", None, SHM, None, MS_REMOUNT, way)
    os.unlink(path)


# ---- the node ----


def open_other_gpus(facts, notes):
    """Device files of other GPUs: those that are there, and such as the tenant makes."""
    own = {name for name in os.listdir("/dev") if name.startswith("nvidia")}
    notes.say(f"in /dev: {' '.join(sorted(own)) or 'none'}")
    for number in range(8):
        if f"nvidia{number}" not in own:
            notes.step("open another GPU", os.open, f"/dev/nvidia{number}", os.O_RDWR)
        path = os.path.join(scratch(), f"nvidia{number}")
        for kind, major, minor in ((0o020000, 195, number), (0o020000, 195, 255), (0o020000, 1, 1), (0o060000, 8, 0)):
            if notes.step("mknod", os.mknod, path, kind | 0o666, os.makedev(major, minor)):
                # The tenant's own GPU is its own by whatever name.
                if (major, minor) != (195, 255) and f"nvidia{number}" not in own:
                    notes.step("open what was made", os.open, path, os.O_RDWR)
                os.unlink(path)
    notes.step("open MIG capabilities", os.listdir, "/dev/nvidia-caps")


def mount_the_host(facts, notes):
    target = scratch()
    own_mounts(notes)
    for kind in ("devtmpfs", "debugfs", "tracefs", "securityfs", "bpf", "cgroup", "cgroup2", "sysfs", "proc"):
        if notes.step(f"mount {kind}", system, "mount", kind, target, kind, 0, None):
            if kind in ("sysfs", "proc", "cgroup", "cgroup2"):
                ways = {"sysfs": "kernel/uevent_helper", "proc": "sys/kernel/core_pattern"}
                notes.step(f"write in {kind}", os.open, f"{target}/{ways.get(kind, 'cgroup.procs')}", os.O_WRONLY)
            system("umount2", target, MNT_DETACH)
    for device in ("/dev/vda", "/dev/sda", "/dev/nvme0n1"):
        notes.step("mount a disk", system, "mount", device, target, "ext4", 0, None)


def trace_and_kill(facts, notes):
    """The neighbour's, the server's and the daemon's processes, by their numbers on the host."""
    room = ctypes.create_string_buffer(8)
    own = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(room), 8))
    for process in [number for number in facts["processes"] if not os.path.isdir(f"/proc/{number}")]:
        notes.step("kill", os.kill, process, signal.SIGKILL)
        notes.step("ptrace", system, "ptrace", PTRACE_ATTACH, process, 0, 0)
        notes.step("seize", system, "ptrace", PTRACE_SEIZE, process, 0, 0)
        notes.step("pidfd", system, "syscall", PIDFD_OPEN, process, 0)
        notes.step("read memory", system, "syscall", PROCESS_VM_READV, process, own, 1, own, 1, 0)
        notes.step("renice", os.setpriority, os.PRIO_PROCESS, process, 19)
        notes.step("pin to a CPU", os.sched_setaffinity, process, {0})
    # All processes that there are for it: neither itself nor the first one of its namespace.
    notes.step("kill all", os.kill, -1, signal.SIGKILL)


def read_other_processes(facts, notes):
    for process in [*facts["processes"], 1]:
        for name in ("environ", "mem", "maps", "root/etc/shadow", "cwd", "fd"):
            way = f"/proc/{process}/{name}"
            found = os.path.isdir(f"/proc/{process}") and process != 1
            if found or process == 1 and name == "root/etc/shadow":
                notes.step(f"read {name}", os.open, way, os.O_RDONLY)
            elif process != 1:
                notes.say("no such process in /proc")
    for name in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/vm/drop_caches", "driver/nvidia/params"):
        notes.step(f"open {name} to write", os.open, f"/proc/{name}", os.O_WRONLY)


def join_namespaces(facts, notes):
    for name in ("user", "mnt", "pid", "net", "ipc"):
        for process in [*facts["processes"][:1], 1]:

            def join():
                file = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY)
                if os.stat(file).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
                    return "it is its own"
                system("setns", file, 0)
                return "done"

            notes.say(f"{name}: {in_child(join)}")


def set_gpu_modes(facts, notes):
    """Modes of the GPU through NVML; each is set to what it is."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return notes.say("no NVML in the container")
    device, now = ctypes.c_void_p(), ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
        return notes.say("NVML does not start")
    for mode in ("ComputeMode", "PersistenceMode"):
        if getattr(nvml, f"nvmlDeviceGet{mode}")(device, ctypes.byref(now)) == 0:
            notes.say(f"set {mode} to what it is: {getattr(nvml, f'nvmlDeviceSet{mode}')(device, now)}")
