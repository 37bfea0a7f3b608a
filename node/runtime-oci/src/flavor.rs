//! How one OCI runtime is called. They share the bundle and most of the command line; what differs is here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hutch_runtime::RuntimeError;
use hutch_types::Isolation;

use crate::command;

/// A whole start takes some tens of milliseconds; a host that needs this long is out of order.
const RUN_LIMIT: Duration = Duration::from_secs(30);
/// Writing and reading gigabytes of memory takes its time.
const SAVE_LIMIT: Duration = Duration::from_secs(300);
const DELETE_LIMIT: Duration = Duration::from_secs(15);

/// Where a container's memory is saved.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    /// CRIU's images. Everybody can get in: restored processes read them with their own ids.
    pub dir: PathBuf,
    /// CRIU's logs.
    pub work: PathBuf,
}

/// An OCI runtime's command.
#[derive(Debug, Clone)]
pub(crate) struct Flavor {
    /// What its containers are isolated by.
    pub isolation: Isolation,
    /// The command.
    pub binary: PathBuf,
    /// Options before the subcommand that only this runtime has.
    pub global_options: Vec<OsString>,
    /// Where it keeps its state.
    pub state: PathBuf,
}

impl Flavor {
    /// runc: namespaces, user namespace, seccomp, cgroups.
    pub fn container(runc: PathBuf, state: PathBuf) -> Self {
        Self { isolation: Isolation::Container, binary: runc, global_options: Vec::new(), state }
    }

    /// Makes the container `id` from `bundle`, starts its process, writes the pid to `pid_file`, and returns.
    pub async fn run(
        &self,
        id: &str,
        bundle: &Path,
        pid_file: &Path,
        log: &Path,
    ) -> Result<(), RuntimeError> {
        let args = self.run_args(id, bundle, pid_file, log);
        command::run("start the container", &self.binary, &args, log, RUN_LIMIT).await
    }

    /// Saves memory and processes of the container `id`, which is frozen, into `images`. It goes on to exist.
    pub async fn checkpoint(
        &self,
        criu: &Path,
        id: &str,
        images: &Images,
        log: &Path,
    ) -> Result<(), RuntimeError> {
        let mut args = self.criu_args(criu, log, "checkpoint", images);
        args.extend(["--leave-running".into(), id.into()]);
        command::run("save the container", &self.binary, &args, log, SAVE_LIMIT).await
    }

    /// Makes the container `id` from `bundle` and `images`, and writes the pid of its first process to `pid_file`.
    pub async fn restore(
        &self,
        criu: &Path,
        id: &str,
        bundle: &Path,
        images: &Images,
        pid_file: &Path,
        log: &Path,
    ) -> Result<(), RuntimeError> {
        let mut args = self.criu_args(criu, log, "restore", images);
        args.extend(["--detach".into(), "--bundle".into(), bundle.into()]);
        args.extend(["--pid-file".into(), pid_file.into(), id.into()]);
        command::run("restore the container", &self.binary, &args, log, SAVE_LIMIT).await
    }

    /// Removes what is left of the container `id`, running or not. None at all is no error.
    pub async fn delete(&self, id: &str, log: &Path) -> Result<(), RuntimeError> {
        if !self.state.join(id).exists() {
            return Ok(());
        }
        let args = self.delete_args(id, log);
        command::run("delete the container", &self.binary, &args, log, DELETE_LIMIT).await
    }

    fn run_args(&self, id: &str, bundle: &Path, pid_file: &Path, log: &Path) -> Vec<OsString> {
        let mut args = self.global_args(log);
        args.extend(["run".into(), "--detach".into(), "--bundle".into(), bundle.into()]);
        args.extend(["--pid-file".into(), pid_file.into(), id.into()]);
        args
    }

    /// The network namespace is not saved: another slot makes its contents. Connections inside it are.
    fn criu_args(&self, criu: &Path, log: &Path, subcommand: &str, images: &Images) -> Vec<OsString> {
        let mut args = self.global_args(log);
        args.extend(["--criu".into(), criu.into(), subcommand.into()]);
        args.extend(["--image-path".into(), images.dir.clone().into()]);
        args.extend(["--work-path".into(), images.work.clone().into()]);
        args.extend(["--empty-ns", "network", "--manage-cgroups-mode", "soft"].map(OsString::from));
        args.extend(["--tcp-established", "--file-locks"].map(OsString::from));
        args
    }

    fn delete_args(&self, id: &str, log: &Path) -> Vec<OsString> {
        let mut args = self.global_args(log);
        args.extend(["delete".into(), "--force".into(), id.into()]);
        args
    }

    fn global_args(&self, log: &Path) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["--root".into(), self.state.clone().into()];
        args.extend(["--log".into(), log.into(), "--log-format".into(), "json".into()]);
        args.extend(self.global_options.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(args: Vec<OsString>) -> String {
        args.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn options_of_a_runtime_come_before_the_subcommand() {
        let mut flavor = Flavor::container("runc".into(), "/state".into());
        flavor.global_options = vec!["--platform=systrap".into()];
        assert_eq!(
            joined(flavor.run_args("n1", Path::new("/b"), Path::new("/b/pid"), Path::new("/b/log"))),
            "--root /state --log /b/log --log-format json --platform=systrap run --detach --bundle /b --pid-file /b/pid n1"
        );
        assert_eq!(
            joined(flavor.delete_args("n1", Path::new("/b/log"))),
            "--root /state --log /b/log --log-format json --platform=systrap delete --force n1"
        );
    }

    #[tokio::test]
    async fn deleting_what_is_not_there_does_not_call_the_runtime() {
        let flavor = Flavor::container("/nonexistent/runc".into(), "/nonexistent/state".into());
        flavor.delete("n1", Path::new("/dev/null")).await.unwrap();
    }
}
