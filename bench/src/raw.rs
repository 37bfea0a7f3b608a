//! The raw primitive: runc on the same root, with its own default configuration.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// A bundle whose root is an overlay over the server's base layer. Removed when dropped.
#[derive(Debug)]
pub struct Bundle {
    dir: PathBuf,
    name: String,
}

impl Bundle {
    pub fn new(data_dir: &Path) -> anyhow::Result<Self> {
        let layers = data_dir.join("node/layers");
        let layer = std::fs::read_dir(&layers)
            .with_context(|| format!("cannot list {}", layers.display()))?
            .flatten()
            .map(|entry| entry.path().join("tree"))
            .find(|tree| tree.join("bin/true").exists())
            .context("no layer with /bin/true")?;
        let name = format!("hutch-bench-{}", std::process::id());
        let bundle = Self { dir: std::env::temp_dir().join(&name), name };
        for sub in ["rootfs", "upper", "state"] {
            std::fs::create_dir_all(bundle.dir.join(sub))?;
        }
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(bundle.dir.join("upper")))?;
        for sub in ["upper/up", "upper/work"] {
            std::fs::create_dir_all(bundle.dir.join(sub))?;
        }
        let (lower, own) = (layer.display(), bundle.dir.display());
        let options = format!("lowerdir={lower},upperdir={own}/upper/up,workdir={own}/upper/work");
        run(Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(bundle.dir.join("rootfs")))?;
        run(Command::new("runc").arg("spec").arg("--bundle").arg(&bundle.dir))?;
        Ok(bundle)
    }

    /// The whole of `runc run` of `true`: create, start, run, delete.
    pub fn run(&self, rounds: usize) -> anyhow::Result<Vec<Duration>> {
        self.configure(&["/bin/true"])?;
        self.time(rounds, |bundle, i| bundle.runc(&["run", &format!("{}-{i}", bundle.name)]))
    }

    /// `runc exec` of `true` in a running container.
    pub fn exec(&self, rounds: usize) -> anyhow::Result<Vec<Duration>> {
        self.configure(&["/bin/sleep", "600"])?;
        let id = format!("{}-exec", self.name);
        self.runc(&["run", "--detach", &id])?;
        let times = self.time(rounds, |bundle, _| bundle.runc(&["exec", &id, "/bin/true"]));
        self.runc(&["delete", "--force", &id])?;
        times
    }

    fn time(
        &self,
        rounds: usize,
        step: impl Fn(&Self, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Duration>> {
        (0..rounds)
            .map(|i| {
                let started = Instant::now();
                step(self, i)?;
                Ok(started.elapsed())
            })
            .collect()
    }

    fn configure(&self, args: &[&str]) -> anyhow::Result<()> {
        let path = self.dir.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(args);
        config["root"]["readonly"] = json!(false);
        std::fs::write(path, config.to_string())?;
        Ok(())
    }

    fn runc(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.dir.join("state")).args(args).current_dir(&self.dir);
        run(&mut command)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        for mount in ["rootfs", "upper"] {
            if let Err(error) = run(Command::new("umount").arg(self.dir.join(mount))) {
                eprintln!("left behind: {error:#}");
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("left behind: {}: {error}", self.dir.display());
        }
    }
}

pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}
