//! What paths of requests mean, for any text.

use std::path::{Component, Path};

use hutch_envd::paths::resolve;
use hutch_envd::users::User;
use hutch_envd::{Config, State};
use proptest::prelude::*;

fn user() -> User {
    User {
        name: "user".to_owned(),
        uid: 1000,
        gid: 1000,
        groups: vec![1000],
        home: "/home/user".into(),
        shell: "/bin/sh".to_owned(),
        switch: false,
    }
}

proptest! {
    #[test]
    fn a_path_resolves_to_an_absolute_one_or_is_refused(path in "\\PC{0,30}|[~/.a\\x00]{0,12}") {
        let state = State::new(Config::default());
        match resolve(&user(), &state, &path) {
            Err(_) => prop_assert!(path.contains('\0') || (path.starts_with('~') && path != "~")),
            Ok(found) if path.starts_with('/') => prop_assert_eq!(found, Path::new(&path)),
            Ok(found) => {
                prop_assert!(found.is_absolute());
                let is_clean = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
                prop_assert!(found.components().all(is_clean), "{}", found.display());
                let climbs = path.split('/').any(|part| part == "..");
                prop_assert!(climbs || found.starts_with("/home/user"), "{}", found.display());
            }
        }
    }

    #[test]
    fn resolving_twice_changes_nothing(path in "[~/.a-c ]{0,16}") {
        let state = State::new(Config::default());
        if let Ok(once) = resolve(&user(), &state, &path) {
            let twice = resolve(&user(), &state, once.to_str().unwrap());
            prop_assert_eq!(twice, Ok(once));
        }
    }
}
