//! Makes a process out of a request: user, directory, environment, streams.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use hutch_proto::process as pb;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::error::ProcessError;
use super::hub::Channel;
use super::input::Input;
use super::pty;
use crate::paths;
use crate::state::State;
use crate::users::User;

/// Added to the error number when it is the change of directory that failed: the pipe between `fork` and `exec`
/// carries one number only.
const CHDIR_FAILED: i32 = 1 << 16;

/// What the out-of-memory killer adds to the size of whatever is started here: a tenth of all memory. Whether or not
/// the host could protect envd and init with a negative score, any process of the guest is a better victim than they.
const OOM_SCORE: &[u8] = b"100";

/// Where output comes out.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) channel: Channel,
    pub(super) fd: Arc<AsyncFd<OwnedFd>>,
}

/// A process that has just been started.
pub(super) struct Spawned {
    pub(super) child: Child,
    pub(super) pid: u32,
    pub(super) sources: Vec<Source>,
    pub(super) input: Input,
}

/// What the process reads and writes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Streams {
    /// Three pipes, or `/dev/null` as stdin.
    Pipes { stdin: bool },
    /// A terminal of this size.
    Terminal(Winsize),
}

/// Starts what `config` says, as `user`. Blocks until the program runs or could not be run.
pub(super) fn spawn(
    state: &State,
    user: &User,
    config: &pb::ProcessConfig,
    streams: Streams,
) -> Result<Spawned, ProcessError> {
    check_no_nul(config)?;
    let cwd = working_directory(state, user, config.cwd.as_deref().unwrap_or(""))?;
    let mut command = Command::new(&config.cmd);
    command.args(&config.args).env_clear().envs(environment(state, user, config)?);

    let (sources, input) = connect(&mut command, user, streams).map_err(ProcessError::Streams)?;
    let mut setup =
        Setup::new(user, &cwd, state.config.child_open_files, matches!(streams, Streams::Terminal(_)))
            .ok_or(ProcessError::Nul { field: "cwd" })?;
    // SAFETY: `Setup::run` makes nothing but system calls on values prepared here; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || setup.run());
    }
    let child = command.spawn().map_err(|error| spawn_error(config, cwd, error))?;
    let pid = child.id().unwrap_or(0);
    Ok(Spawned { child, pid, sources, input })
}

fn check_no_nul(config: &pb::ProcessConfig) -> Result<(), ProcessError> {
    if config.cmd.is_empty() {
        return Err(ProcessError::NoCommand);
    }
    for (field, has_nul) in [
        ("cmd", config.cmd.contains('\0')),
        ("args", config.args.iter().any(|a| a.contains('\0'))),
        ("envs", config.envs.values().any(|v| v.contains('\0'))),
    ] {
        if has_nul {
            return Err(ProcessError::Nul { field });
        }
    }
    Ok(())
}

fn working_directory(state: &State, user: &User, cwd: &str) -> Result<PathBuf, ProcessError> {
    let cwd = paths::resolve(user, state, cwd)?;
    match std::fs::metadata(&cwd) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ProcessError::NoCwd(cwd)),
        // Whatever else is wrong shows when the process, as its user, goes there.
        _ => Ok(cwd),
    }
}

/// What the process inherits: nothing of envd's but the search path; later layers win.
fn environment(
    state: &State,
    user: &User,
    config: &pb::ProcessConfig,
) -> Result<BTreeMap<String, String>, ProcessError> {
    let mut vars = BTreeMap::from([
        ("PATH".to_owned(), state.config.search_path.clone()),
        ("HOME".to_owned(), user.home.to_string_lossy().into_owned()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
    ]);
    vars.extend(state.env_vars());
    for (name, value) in &config.envs {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ProcessError::Variable(name.replace('\0', "\\0")));
        }
        vars.insert(name.clone(), value.clone());
    }
    Ok(vars)
}

/// Gives the command its streams and returns envd's ends of them.
fn connect(command: &mut Command, user: &User, streams: Streams) -> io::Result<(Vec<Source>, Input)> {
    match streams {
        Streams::Pipes { stdin } => {
            let (stdout, theirs) = io::pipe()?;
            command.stdout(Stdio::from(theirs));
            let (stderr, theirs) = io::pipe()?;
            command.stderr(Stdio::from(theirs));
            let input = if stdin {
                let (theirs, stdin) = io::pipe()?;
                command.stdin(Stdio::from(theirs));
                Some(asynchronous(stdin.into())?)
            } else {
                command.stdin(Stdio::null());
                None
            };
            let sources = vec![
                Source { channel: Channel::Stdout, fd: Arc::new(asynchronous(stdout.into())?) },
                Source { channel: Channel::Stderr, fd: Arc::new(asynchronous(stderr.into())?) },
            ];
            Ok((sources, Input::Stdin(Mutex::new(input))))
        }
        Streams::Terminal(size) => {
            let terminal = pty::open(user, size)?;
            command.stdin(Stdio::from(terminal.slave.try_clone()?));
            command.stdout(Stdio::from(terminal.slave.try_clone()?));
            command.stderr(Stdio::from(terminal.slave));
            let master = Arc::new(asynchronous(terminal.master)?);
            let source = Source { channel: Channel::Pty, fd: master.clone() };
            Ok((vec![source], Input::Pty(master, Mutex::new(()))))
        }
    }
}

fn asynchronous(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    // SAFETY: an `OwnedFd` is a valid descriptor that nobody replaces or closes while `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(fd)? })
}

fn spawn_error(config: &pb::ProcessConfig, cwd: PathBuf, error: io::Error) -> ProcessError {
    let number = error.raw_os_error().unwrap_or(0);
    if number & CHDIR_FAILED == 0 {
        let command = config.args.iter().fold(config.cmd.clone(), |all, arg| all + " " + arg);
        return ProcessError::Spawn { command, reason: error.to_string(), source: error };
    }
    match Errno::from_raw_os_error(number & !CHDIR_FAILED) {
        Errno::NOENT => ProcessError::NoCwd(cwd),
        Errno::NOTDIR => ProcessError::CwdNotDirectory(cwd),
        _ => ProcessError::CwdDenied(cwd),
    }
}

/// What the child does between `fork` and `exec`. Everything is allocated beforehand.
struct Setup {
    switch: Option<(Vec<Gid>, Gid, Uid)>,
    cwd: CString,
    open_files: Option<u64>,
    terminal: bool,
}

impl Setup {
    /// `None` when the directory's name contains a NUL byte.
    fn new(user: &User, cwd: &Path, open_files: Option<u64>, terminal: bool) -> Option<Self> {
        let switch = user.switch.then(|| {
            let groups = user.groups.iter().copied().map(Gid::from_raw).collect();
            (groups, Gid::from_raw(user.gid), Uid::from_raw(user.uid))
        });
        Some(Self { switch, cwd: CString::new(cwd.as_os_str().as_bytes()).ok()?, open_files, terminal })
    }

    fn run(&mut self) -> io::Result<()> {
        rustix::process::setsid()?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        if let Ok(score) = rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY, Mode::empty()) {
            rustix::io::write(score.as_fd(), OOM_SCORE).ok();
        }
        if let Some(soft) = self.open_files {
            let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
            rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: hard }).ok();
        }
        rustix::process::umask(Mode::from_raw_mode(0o022));
        for signal in 1..=64 {
            // SAFETY: sets the default action; signals whose action cannot be set are left alone.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` fills the set, which is then read; no old set is asked for.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        }
        // SAFETY: marks descriptors that envd may have inherited itself; no memory is involved. Kernels without the
        // call have only those that were opened close-on-exec.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        if let Some((groups, gid, uid)) = &self.switch {
            // This thread is the only one of the child, so the calls for one thread are the right ones.
            rustix::thread::set_thread_groups(groups)?;
            rustix::thread::set_thread_res_gid(*gid, *gid, *gid)?;
            rustix::thread::set_thread_res_uid(*uid, *uid, *uid)?;
        }
        rustix::process::chdir(&self.cwd)
            .map_err(|error| io::Error::from_raw_os_error(error.raw_os_error() | CHDIR_FAILED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Users};
    use crate::state::Update;

    fn state() -> Arc<State> {
        let users = Users::Everyone { home: "/home/user".into() };
        State::new(Config { users, search_path: "/bin:/usr/bin".to_owned(), ..Config::default() })
    }

    fn config(envs: &[(&str, &str)]) -> pb::ProcessConfig {
        let envs = envs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        pb::ProcessConfig { cmd: "/bin/true".to_owned(), envs, ..Default::default() }
    }

    #[test]
    fn later_layers_of_the_environment_win_and_nothing_else_is_inherited() {
        let state = state();
        let user = state.user(None).unwrap();
        let user_vars = [("A", "global"), ("B", "global"), ("HOME", "/elsewhere")];
        let user_vars = Some(user_vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        state.update(Update { user_vars, ..Update::default() });
        let vars = environment(&state, &user, &config(&[("B", "request"), ("PATH", "/opt")])).unwrap();
        let expected = [
            ("A", "global"),
            ("B", "request"),
            ("E2B_SANDBOX", "true"),
            ("HOME", "/elsewhere"),
            ("LOGNAME", "user"),
            ("PATH", "/opt"),
            ("USER", "user"),
        ];
        assert!(vars.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected), "{vars:?}");
    }

    #[test]
    fn hostile_names_and_values_are_refused() {
        let state = state();
        let user = state.user(None).unwrap();
        for name in ["", "A=B", "A\0"] {
            assert!(environment(&state, &user, &config(&[(name, "x")])).is_err(), "{name:?}");
        }
        assert!(check_no_nul(&config(&[("A", "\0")])).is_err());
        assert!(check_no_nul(&pb::ProcessConfig::default()).is_err());
        assert!(check_no_nul(&config(&[])).is_ok());
    }

    #[test]
    fn what_is_wrong_with_the_directory_is_told_apart() {
        let error = |errno: Errno| {
            let raw = io::Error::from_raw_os_error(errno.raw_os_error() | CHDIR_FAILED);
            spawn_error(&config(&[]), "/x".into(), raw).to_string()
        };
        assert_eq!(error(Errno::NOENT), "cwd '/x' does not exist");
        assert_eq!(error(Errno::NOTDIR), "cwd '/x' is not a directory");
        assert_eq!(error(Errno::ACCESS), "cwd '/x': permission denied");
        let exec = spawn_error(&config(&[]), "/x".into(), io::Error::from_raw_os_error(2)).to_string();
        assert!(exec.starts_with("error starting process '/bin/true': No such file"), "{exec}");
    }
}
