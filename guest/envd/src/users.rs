//! Users and groups, read from `/etc/passwd` and `/etc/group` without NSS, which a static binary must not load.

use std::path::{Path, PathBuf};

use crate::config::Users;

/// Someone whom processes run as and files belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The login name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// Every group, the primary one first.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: String,
    /// Whether processes and files must change to this user; false when envd stays who it is.
    pub switch: bool,
}

/// Why there is no such user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// `/etc/passwd` does not have the name.
    #[error("invalid username: '{0}'")]
    Unknown(String),
    /// `/etc/passwd` cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Looks up `name`. The files are read each time: a sandbox may add users while it runs.
///
/// # Errors
/// [`UserError::Unknown`] when there is no such user.
pub fn lookup(users: &Users, default_user: &str, name: &str) -> Result<User, UserError> {
    match users {
        Users::System => {
            let passwd = read(Path::new(PASSWD))?;
            // Without /etc/group there simply are no supplementary groups.
            let group = std::fs::read_to_string(GROUP).unwrap_or_default();
            find(&passwd, &group, name).ok_or_else(|| UserError::Unknown(name.to_owned()))
        }
        Users::Everyone { home } => everyone(home, default_user, name),
    }
}

/// The name of `uid`, when it has one.
pub fn user_name(uid: u32) -> Option<String> {
    let passwd = std::fs::read_to_string(PASSWD).ok()?;
    passwd.lines().filter_map(Account::parse).find(|a| a.uid == uid).map(|a| a.name.to_owned())
}

/// The name of the group `gid`, when it has one.
pub fn group_name(gid: u32) -> Option<String> {
    let group = std::fs::read_to_string(GROUP).ok()?;
    group.lines().filter_map(Group::parse).find(|g| g.gid == gid).map(|g| g.name.to_owned())
}

fn everyone(home: &Path, default_user: &str, name: &str) -> Result<User, UserError> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let own = user_name(uid);
    if !["root", "user", default_user].contains(&name) && own.as_deref() != Some(name) {
        return Err(UserError::Unknown(name.to_owned()));
    }
    Ok(User {
        name: name.to_owned(),
        uid,
        gid,
        groups: vec![gid],
        home: home.to_owned(),
        shell: "/bin/sh".to_owned(),
        switch: false,
    })
}

fn read(path: &Path) -> Result<String, UserError> {
    std::fs::read_to_string(path).map_err(|source| UserError::Read { path: path.to_owned(), source })
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
    shell: &'a str,
}

impl<'a> Account<'a> {
    /// `name:password:uid:gid:comment:home:shell`; `None` for anything else, comments and NIS lines included.
    fn parse(line: &'a str) -> Option<Self> {
        let mut f = line.split(':');
        let (name, _, uid, gid, _, home) = (f.next()?, f.next()?, f.next()?, f.next()?, f.next()?, f.next()?);
        if name.is_empty() || name.starts_with(['#', '+', '-']) {
            return None;
        }
        Some(Self {
            name,
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home,
            shell: f.next().unwrap_or(""),
        })
    }
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl<'a> Group<'a> {
    /// `name:password:gid:member,member`.
    fn parse(line: &'a str) -> Option<Self> {
        let mut f = line.split(':');
        let (name, _, gid) = (f.next()?, f.next()?, f.next()?);
        if name.is_empty() || name.starts_with(['#', '+', '-']) {
            return None;
        }
        Some(Self { name, gid: gid.parse().ok()?, members: f.next().unwrap_or("") })
    }
}

fn find(passwd: &str, group: &str, name: &str) -> Option<User> {
    let account = passwd.lines().filter_map(Account::parse).find(|a| a.name == name)?;
    let mut groups = vec![account.gid];
    for g in group.lines().filter_map(Group::parse) {
        if g.members.split(',').any(|m| m.trim() == name) && !groups.contains(&g.gid) {
            groups.push(g.gid);
        }
    }
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Some(User {
        name: account.name.to_owned(),
        uid: account.uid,
        gid: account.gid,
        groups,
        home: PathBuf::from(or(account.home, "/")),
        shell: or(account.shell, "/bin/sh"),
        switch: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "# comment\nroot:x:0:0:root:/root:/bin/bash\n+nis::::::\nbroken:x:abc:0::/:\n\
        user:x:1000:1001:,,,:/home/user:/bin/zsh\nbare:x:7:7:::\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:other,user\nuser:x:1001:user\ndocker:x:99: user\nodd\n";

    #[test]
    fn a_user_has_its_home_shell_and_every_group_once() {
        let user = find(PASSWD, GROUP, "user").unwrap();
        assert_eq!((user.uid, user.gid), (1000, 1001));
        assert_eq!(user.groups, [1001, 27, 99]);
        assert_eq!((user.home.to_str(), user.shell.as_str()), (Some("/home/user"), "/bin/zsh"));
        assert!(user.switch);
    }

    #[test]
    fn empty_fields_get_the_usual_defaults() {
        let user = find(PASSWD, GROUP, "bare").unwrap();
        assert_eq!((user.home.to_str(), user.shell.as_str()), (Some("/"), "/bin/sh"));
    }

    #[test]
    fn broken_lines_comments_and_other_names_are_no_users() {
        for name in ["broken", "#", "# comment", "+nis", "nobody", ""] {
            assert_eq!(find(PASSWD, GROUP, name), None, "{name}");
        }
    }

    #[test]
    fn outside_a_sandbox_only_the_common_names_are_known() {
        let users = Users::Everyone { home: "/tmp/home".into() };
        let user = lookup(&users, "agent", "agent").unwrap();
        assert_eq!((user.home.to_str(), user.switch), (Some("/tmp/home"), false));
        let error = lookup(&users, "agent", "nobody-here").unwrap_err();
        assert_eq!(error.to_string(), "invalid username: 'nobody-here'");
    }
}
