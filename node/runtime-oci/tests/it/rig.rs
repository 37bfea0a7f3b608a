//! A host for containers in a temporary directory, with everything that identifies it its own.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use async_trait::async_trait;
use hutch_disk::{DiskConfig, DiskError, DiskStore, ImageConfig, ImportLimits};
use hutch_net::{NetConfig, Network};
use hutch_runtime::conformance::Fixture;
use hutch_runtime::{Instance, InstanceSpec, Runtime};
use hutch_runtime_oci::{OciConfig, OciRuntime, OciSupport};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, InstanceId, Resources, Secret};
use tokio::sync::Mutex;

const PATIENCE: Duration = Duration::from_secs(20);

pub struct Rig {
    dir: tempfile::TempDir,
    guest: PathBuf,
    build: BuildId,
    net: NetConfig,
    cgroup_parent: String,
    /// The daemon that is open, if any.
    open: Mutex<Option<(Supervisor, Network)>>,
}

impl Rig {
    /// Imports the image. The inner error is why this machine cannot.
    pub fn new() -> anyhow::Result<Result<Self, String>> {
        drop(
            tracing_subscriber::fmt().with_env_filter("hutch_runtime_oci=info").with_test_writer().try_init(),
        );
        let support = OciSupport::detect(Path::new("runc"), None);
        if !support.works() {
            return Ok(Err(format!("{support:?}")));
        }
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = |variable: &str, default: &str| {
            std::env::var_os(variable).map_or_else(|| repository.join(default), PathBuf::from)
        };
        let rootfs = path("HUTCH_TEST_BASE_TAR", ".hutch/tools/base.tar");
        let guest = path("HUTCH_TEST_GUEST_DIR", "target/release/guest");
        for needed in [&rootfs, &guest.join("envd"), &guest.join("init")] {
            if !needed.is_file() {
                return Ok(Err(format!("there is no {}", needed.display())));
            }
        }
        let dir = tempfile::Builder::new().prefix("hutch-oci-").tempdir()?;
        // As in a home directory: nobody but root gets through.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let disks = DiskStore::open(DiskConfig::new(dir.path().join("disk")))?;
        let clock = Instant::now();
        let layer = disks.import_tar(File::open(&rootfs)?, ImportLimits::default(), &mut |_| {})?.layer;
        eprintln!("timing: import of the image: {:?}", clock.elapsed());
        let build = BuildId::random();
        disks.register_image(build, ImageConfig::default(), vec![layer])?;
        let cgroup_parent = format!("hutch-test-{}", std::process::id());
        Ok(Ok(Self {
            dir,
            guest,
            build,
            net: NetConfig::numbered(77),
            cgroup_parent,
            open: Mutex::default(),
        }))
    }

    pub fn spec(&self) -> InstanceSpec {
        InstanceSpec {
            id: InstanceId::random(),
            build_id: self.build,
            resources: self.resources(),
            secret: Secret::random(16),
        }
    }

    /// Where the runtime keeps its files.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("node")
    }

    /// A running instance whose envd answers.
    pub async fn start(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Instance> {
        let instance = match runtime.start(self.spec()).await {
            Ok(instance) => instance,
            Err(error) => panic!("start: {}", error.chain()),
        };
        hutch_runtime::conformance::guest::wait_healthy(&*instance).await;
        instance
    }

    /// For files of the test's own.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// As [`Fixture::open`], with another command in the place of runc.
    pub async fn open_with(&self, runc: &Path) -> Arc<dyn Runtime> {
        Arc::new(self.open_oci(runc, Path::new("")).await.expect("open the runtime"))
    }

    /// As [`Fixture::open`], with lxcfs.
    pub async fn open_with_lxcfs(&self) -> OciRuntime {
        self.open_oci(Path::new("runc"), Path::new("lxcfs")).await.expect("open the runtime")
    }

    async fn open_oci(&self, runc: &Path, lxcfs: &Path) -> anyhow::Result<OciRuntime> {
        let mut open = self.open.lock().await;
        if let Some((supervisor, _)) = open.take() {
            assert_eq!(supervisor.shutdown(PATIENCE).await, 0, "tasks that do not end");
        }
        let supervisor = Supervisor::new();
        let disks = self.open_disks().await?;
        let net = Network::open(self.net.clone(), &supervisor).await?;
        *open = Some((supervisor.clone(), net.clone()));
        let mut config = OciConfig::new(self.data_dir(), &self.guest, disks, net);
        config.runc = runc.to_owned();
        config.lxcfs = lxcfs.to_owned();
        // Without one that works here, memory cannot be saved, and the suite leaves that out.
        config.criu = std::env::var_os("HUTCH_TEST_CRIU").map(PathBuf::from);
        config.cgroup_parent = self.cgroup_parent.clone();
        Ok(OciRuntime::open(config, &supervisor).await?)
    }

    /// The lock of the store goes with the last handle, which a task may hold for a moment.
    async fn open_disks(&self) -> anyhow::Result<DiskStore> {
        let started = Instant::now();
        loop {
            match DiskStore::open(DiskConfig::new(self.dir.path().join("disk"))) {
                Err(DiskError::InUse(_)) if started.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                other => return Ok(other?),
            }
        }
    }

    /// Removes what is not in the temporary directory.
    pub async fn close(self) -> anyhow::Result<()> {
        let runtime = self.open_oci(Path::new("runc"), Path::new("")).await?;
        let mount_dir = DiskConfig::new(self.dir.path().join("disk")).mount_dir;
        let adoption = runtime.adopt().await?;
        for instance in adoption.adopted {
            instance.kill().await?;
        }
        for instance in adoption.paused {
            runtime.discard(&instance.spec.id).await?;
        }
        runtime.close().await?;
        drop(runtime);
        if let Some((supervisor, net)) = self.open.lock().await.take() {
            net.teardown().await?;
            supervisor.shutdown(PATIENCE).await;
        }
        rustix::mount::unmount(&mount_dir, rustix::mount::UnmountFlags::empty()).context("unmount")?;
        fs::remove_dir(&mount_dir).context("remove the mount directory")?;
        self.dir.close().context("remove the temporary directory")
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[async_trait]
impl Fixture for Rig {
    async fn open(&self) -> Arc<dyn Runtime> {
        self.open_with(Path::new("runc")).await
    }

    fn build(&self) -> BuildId {
        self.build
    }

    fn resources(&self) -> Resources {
        Resources { vcpus: 2, memory_mib: 512, disk_mib: 512, max_processes: 512 }
    }

    async fn leftovers(&self) -> Vec<String> {
        let disk = DiskConfig::new(self.dir.path().join("disk"));
        let mut left = Vec::new();
        for dir in ["instances", "runc"] {
            left.extend(names(&self.data_dir().join(dir)).iter().map(|name| format!("{dir} {name}")));
        }
        for dir in [disk.data_dir.join("disks"), disk.mount_dir.clone()] {
            left.extend(names(&dir).iter().map(|name| format!("{} {name}", dir.display())));
        }
        for hierarchy in names(Path::new("/sys/fs/cgroup")) {
            let parent = Path::new("/sys/fs/cgroup").join(&hierarchy).join(&self.cgroup_parent);
            let groups = names(&parent).into_iter().filter(|name| parent.join(name).is_dir());
            left.extend(groups.map(|name| format!("cgroup {hierarchy} {name}")));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = format!("{}/", disk.mount_dir.display());
        left.extend(mounts.lines().filter(|line| line.contains(&below)).map(|line| format!("mount {line}")));
        for device in names(Path::new("/sys/block")) {
            let file = Path::new("/sys/block").join(&device).join("loop/backing_file");
            let file = fs::read_to_string(file).unwrap_or_default();
            if Path::new(file.trim()).starts_with(self.dir.path()) {
                left.push(format!("{device} {file}"));
            }
        }
        let links = names(Path::new("/sys/class/net")).into_iter();
        left.extend(
            links.filter(|name| name.starts_with(&self.net.prefix)).map(|name| format!("link {name}")),
        );
        left
    }

    async fn kill_pid1(&self, id: &InstanceId) {
        let record = fs::read(self.data_dir().join("instances").join(id.as_str()).join("instance.json"))
            .expect("record");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("record");
        let pid = i32::try_from(record["pid"].as_i64().expect("pid")).expect("pid");
        let pid = rustix::process::Pid::from_raw(pid).expect("pid");
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("pidfd");
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).expect("kill");
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).expect("poll"), 1, "PID 1 does not end");
    }
}
