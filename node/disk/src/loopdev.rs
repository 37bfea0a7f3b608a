//! Loop devices: files as block devices.

use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode};

/// Major number of loop devices.
pub(crate) const LOOP_MAJOR: u32 = 7;

const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CLR_FD: Opcode = 0x4C01;

const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Sectors of this size let direct I/O work whatever the sector size of the host's own disk is.
const SECTOR_BYTES: u32 = 4096;

/// How often a device may be taken away by another process between finding and configuring it.
const ATTEMPTS: usize = 64;

/// Finding a free device and taking it are two calls: inside one process there is no need to race for it.
static TAKING: Mutex<()> = Mutex::new(());

/// `struct loop_info64` of the kernel.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Pause between looks at something that the kernel is about to finish.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// `struct loop_config` of the kernel.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `LOOP_CTL_GET_FREE`: the number is the return value.
struct GetFree;

// SAFETY: the request takes no argument, and its result is the plain return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

/// An attached loop device. The kernel detaches it by itself once nobody has it open any more: this handle keeps it
/// until it is mounted, the mount does afterwards.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    _open: File,
    path: PathBuf,
}

impl LoopDevice {
    /// The device node.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Attaches `image` to a free loop device.
///
/// # Errors
/// `NotFound` when the kernel has no loop devices; `StorageFull` when other processes were quicker every time.
pub(crate) fn attach(image: &File) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let fd = u32::try_from(image.as_raw_fd()).map_err(io::Error::other)?;
    let _taking = TAKING.lock();
    for _ in 0..ATTEMPTS {
        // SAFETY: `GetFree` describes the request as the kernel defines it.
        let number = unsafe { ioctl::ioctl(&control, GetFree) }?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let config = LoopConfig {
            fd,
            block_size: SECTOR_BYTES,
            info: LoopInfo {
                device: 0,
                inode: 0,
                rdevice: 0,
                offset: 0,
                sizelimit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                // A file system that cannot do direct I/O makes the kernel fall back to buffered by itself.
                flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: `LOOP_CONFIGURE` reads a `struct loop_config`, which `LoopConfig` mirrors.
        match unsafe { ioctl::ioctl(&device, ioctl::Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) } {
            Ok(()) => return Ok(LoopDevice { _open: device, path }),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::StorageFull, "other programs took every free loop device"))
}

/// The file behind loop device `minor`, when it has one. A deleted file's path ends in ` (deleted)`.
pub(crate) fn backing_file(minor: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/sys/dev/block/{LOOP_MAJOR}:{minor}/loop/backing_file")).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Every loop device with a file behind it: its node and that file.
pub(crate) fn attached() -> io::Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if let Some(minor) = name.strip_prefix("loop").and_then(|n| n.parse().ok())
            && let Some(file) = backing_file(minor)
        {
            found.push((Path::new("/dev").join(name), file));
        }
    }
    Ok(found)
}

/// Blocks until no loop device has `image` behind it.
///
/// # Errors
/// `ResourceBusy` when one still has after `limit`.
pub(crate) fn wait_detached(image: &Path, limit: Duration) -> io::Result<()> {
    let image = fs::canonicalize(image)?;
    let deadline = Instant::now() + limit;
    while attached()?.iter().any(|(_, file)| Path::new(file) == image) {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Detaches a device; when it is still open somewhere the kernel does it at the last close.
pub(crate) fn detach(device: &Path) -> io::Result<()> {
    let device = File::open(device)?;
    // SAFETY: `LOOP_CLR_FD` takes no argument.
    match unsafe { ioctl::ioctl(&device, ioctl::NoArg::<LOOP_CLR_FD>::new()) } {
        // It was detached meanwhile.
        Ok(()) | Err(Errno::NXIO) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_size() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
