//! How clients name a template: `[namespace/]name[:tag]`, where `name` may be an id.

use crate::error::AppError;

/// The tag that is meant when none is given.
pub const DEFAULT_TAG: &str = "default";

/// The longest reference that is looked at, in bytes.
const MAX_BYTES: usize = 512;

/// A parsed reference, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRef {
    /// The team's slug, where one was given.
    pub namespace: Option<String>,
    /// Name or id.
    pub name: String,
    /// The tag, where one was given.
    pub tag: Option<String>,
}

impl TemplateRef {
    /// Parses what a client sent; case and surrounding space do not matter.
    ///
    /// # Errors
    /// `Invalid` for a reference that no template can have.
    pub fn parse(text: &str) -> Result<Self, AppError> {
        let bad = |why: &str| AppError::invalid(format!("Invalid template reference: {why}"));
        if text.len() > MAX_BYTES {
            return Err(bad("it is too long"));
        }
        let text = text.trim().to_lowercase();
        let (path, tag) = match text.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (text.as_str(), None),
        };
        let (namespace, name) = match path.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, path),
        };
        for part in namespace.into_iter().chain([name]) {
            if part.is_empty() {
                return Err(bad("a part of it is empty"));
            }
            if !part.bytes().all(is_name_byte) {
                return Err(bad("names consist of a-z, 0-9, '-' and '_'"));
            }
        }
        if let Some(tag) = tag
            && (tag.is_empty() || !tag.bytes().all(|b| is_name_byte(b) || b == b'.'))
        {
            return Err(AppError::invalid("Invalid tag: tags consist of a-z, 0-9, '-', '_' and '.'"));
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            tag: tag.map(str::to_owned),
        })
    }

    /// The reference without its tag.
    pub fn without_tag(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// The tag that is meant.
    pub fn tag_or_default(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(Option<String>, String, Option<String>)> {
        TemplateRef::parse(text).ok().map(|r| (r.namespace, r.name, r.tag))
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn all_forms_are_understood() {
        assert_eq!(parsed("base"), Some((None, "base".into(), None)));
        assert_eq!(parsed(" Base:V1.2 "), Some((None, "base".into(), some("v1.2"))));
        assert_eq!(parsed("acme/py_3"), Some((some("acme"), "py_3".into(), None)));
        assert_eq!(parsed("acme/py:stable"), Some((some("acme"), "py".into(), some("stable"))));
    }

    #[test]
    fn what_no_template_can_be_called_is_refused() {
        for bad in
            ["", " ", "/", "a/", "/a", "a/b/c", "a:", "a:b:c", "a:b/c", "../x", "a b", "é", "a\0", "a%2fb"]
        {
            assert!(TemplateRef::parse(bad).is_err(), "{bad:?}");
        }
        assert!(TemplateRef::parse(&"a".repeat(513)).is_err());
    }

    #[test]
    fn no_tag_means_default() {
        assert_eq!(TemplateRef::parse("a").unwrap().tag_or_default(), "default");
        assert_eq!(TemplateRef::parse("a:default").unwrap().tag_or_default(), "default");
    }
}
