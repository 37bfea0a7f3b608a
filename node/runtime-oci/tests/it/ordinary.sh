# What people do in a sandbox. Prints FAIL and a name for what does not work.
check() {
    name=$1; shift
    if out=$(timeout 60 sh -c "$*" 2>&1); then echo "ok $name"; else echo "FAIL $name: $out"; fi
}
as_user() {
    name=$1; shift
    check "$name" "su user -c '$*'"
}
grep -q sandbox /etc/hosts || echo "127.0.1.1 sandbox" >> /etc/hosts
as_user sudo 'test "$(sudo -n id -u)" = 0'
as_user sudo-quiet 'test -z "$(sudo -n true 2>&1)"'
as_user sudo-writes 'sudo -n sh -c "echo x > /root/file" && sudo -n cat /root/file'
check su 'test "$(su - user -c id\ -u)" = 1000'
check useradd 'useradd -m probe && passwd -l probe && su probe -c true && userdel -r probe; ! id probe'
as_user python-processes 'python3 -c "import multiprocessing as m; assert sum(m.Pool(3).map(abs, range(10))) == 45; m.Queue().put(1)"'
as_user python-interfaces 'python3 -c "import socket; assert len(socket.if_nameindex()) >= 2"'
as_user python-venv 'python3 -m venv /tmp/venv && /tmp/venv/bin/pip --version'
as_user node 'node -e "const o=require(\"os\"); if (!o.networkInterfaces().eth0) throw 1; new (require(\"worker_threads\").Worker)(\"\", {eval: true}); require(\"child_process\").execSync(\"true\")"'
as_user npm 'npm --version && cd /tmp && mkdir -p pkg && cd pkg && npm init -y'
as_user npm-install 'mkdir -p /tmp/dep /tmp/app && cd /tmp/dep && npm init -y && cd /tmp/app && npm init -y && npm install --offline /tmp/dep && test -e node_modules/dep'
as_user git 'cd && git init -q probe && cd probe && git config user.email a@b.c && git config user.name n && echo 1 > f && git add f && git commit -qm m && git log --oneline'
if command -v gcc >/dev/null; then
    printf '#include <pthread.h>\nvoid *f(void *a) { return a; }\nint main(void) { pthread_t t; return pthread_create(&t, 0, f, 0) || pthread_join(t, 0); }\n' > /tmp/probe.c
    as_user gcc 'gcc -pthread -o /tmp/probe /tmp/probe.c && /tmp/probe'
    check setcap 'setcap cap_net_bind_service+ep /tmp/probe && /tmp/probe'
fi
if command -v strace >/dev/null; then as_user strace 'strace -f -o /dev/null true'; fi
as_user ptrace 'python3 -c "
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)
assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
assert libc.ptrace(7, pid, 0, 0) == 0
assert os.waitpid(pid, 0)[1] == 0
"'
as_user low-port 'python3 -c "import socket; socket.socket().bind((\"\", 80))"'
if command -v ping >/dev/null; then as_user ping 'ping -c1 -W2 127.0.0.1'; fi
check addresses 'ip -4 addr show eth0 | grep -q "inet 10\." && ip route | grep -q ^default'
check dpkg 'dpkg --audit && apt-get check'
mkdir -p /var/tmp/deb/DEBIAN /var/tmp/deb/usr/share/hutch-probe && echo x > /var/tmp/deb/usr/share/hutch-probe/file
printf 'Package: hutch-probe\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: probe\n' > /var/tmp/deb/DEBIAN/control
check apt-install 'cd /var/tmp && dpkg-deb -b deb hutch-probe.deb && su user -c "sudo -n apt-get install -y /var/tmp/hutch-probe.deb" && test -f /usr/share/hutch-probe/file && apt-get purge -y hutch-probe'
check apt-sandbox 'su -s /bin/sh _apt -c true'
check fifo 'mkfifo /tmp/fifo'
check shared-memory 'python3 -c "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=1000); m.unlink()"'
as_user terminal 'script -qec true /dev/null'
as_user timezone 'date +%Z'
check limits-seen 'test "$(cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null | head -1)" = 536870912'
check disk-seen 'test "$(df --output=size -m / | tail -1)" -lt 513'
check resolver 'grep -q nameserver /etc/resolv.conf && echo "# mine" >> /etc/resolv.conf'
check sync 'sync'
echo done
