//! The media type of a download, and the name it is offered under.

use std::fmt::Write;
use std::path::Path;

/// How many bytes [`of`] looks at.
pub(super) const SNIFFED: usize = 512;

/// The media type of a file: by its extension, else by its first bytes.
pub(super) fn of(path: &Path, head: &[u8]) -> String {
    let Some(mime) = mime_guess::from_path(path).first() else { return sniff(head).to_owned() };
    if mime.type_() == mime_guess::mime::TEXT && mime.get_param("charset").is_none() {
        format!("{mime}; charset=utf-8")
    } else {
        mime.to_string()
    }
}

/// Signatures of formats that browsers show, as the web's sniffing rules list them.
const MAGIC: [(&[u8], &str); 14] = [
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"BM", "image/bmp"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"OggS\0", "application/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfe", "text/plain; charset=utf-16le"),
    (b"\xfe\xff", "text/plain; charset=utf-16be"),
    (b"<?xml", "text/xml; charset=utf-8"),
    (b"\0asm", "application/wasm"),
];

fn sniff(head: &[u8]) -> &'static str {
    let head = head.get(..SNIFFED).unwrap_or(head);
    if let Some((_, mime)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
        return mime;
    }
    let start = head.trim_ascii_start();
    let html = |tag: &[u8]| start.get(..tag.len()).is_some_and(|s| s.eq_ignore_ascii_case(tag));
    if html(b"<!doctype html") || html(b"<html") {
        return "text/html; charset=utf-8";
    }
    // Control characters other than white space and escape do not occur in text.
    let binary = |b: &u8| matches!(b, 0..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if head.iter().any(binary) { "application/octet-stream" } else { "text/plain; charset=utf-8" }
}

/// `Content-Disposition` that shows the file in place and offers to save it under its own name.
pub(super) fn disposition(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$&+-.^_`{|}~".contains(&b);
    let mut out = "inline; filename".to_owned();
    if !name.is_empty() && name.bytes().all(is_token) {
        out.push('=');
        out.push_str(&name);
    } else if name.bytes().all(|b| matches!(b, b' '..=b'~')) {
        out.push_str("=\"");
        for c in name.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    } else {
        out.push_str("*=utf-8''");
        for b in name.bytes() {
            if is_token(b) {
                out.push(char::from(b));
            } else {
                // Writing to a String cannot fail.
                write!(out, "%{b:02X}").ok();
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_extension_decides_and_text_says_its_charset() {
        let check = |path: &str, want: &str| assert_eq!(of(Path::new(path), b"\0"), want, "{path}");
        check("/a/b.txt", "text/plain; charset=utf-8");
        check("/a/B.HTML", "text/html; charset=utf-8");
        check("x.png", "image/png");
        check("x.json", "application/json");
        check("x.unheard-of", "application/octet-stream");
    }

    #[test]
    fn without_an_extension_the_content_decides() {
        let check = |head: &[u8], want: &str| assert_eq!(of(Path::new("/bin/x"), head), want, "{head:?}");
        check(b"", "text/plain; charset=utf-8");
        check("h\u{e4}llo\n\x1b[0m".as_bytes(), "text/plain; charset=utf-8");
        check(b"\x7fELF\x02\x01", "application/octet-stream");
        check(b"%PDF-1.7", "application/pdf");
        check(b" \n<!DOCTYPE html><p>", "text/html; charset=utf-8");
        check(b"<HTML>", "text/html; charset=utf-8");
        let mut late = vec![b'a'; SNIFFED];
        late.push(0);
        check(&late, "text/plain; charset=utf-8");
    }

    #[test]
    fn any_file_name_fits_into_a_header() {
        let check = |path: &str, want: &str| {
            let got = disposition(Path::new(path));
            assert_eq!(got, want);
            assert!(http::HeaderValue::from_str(&got).is_ok());
        };
        check("/tmp/hello.txt", "inline; filename=hello.txt");
        check("/tmp/a b.txt", "inline; filename=\"a b.txt\"");
        check("/tmp/a\"\\.txt", "inline; filename=\"a\\\"\\\\.txt\"");
        check("/tmp/\u{e4}\n.txt", "inline; filename*=utf-8''%C3%A4%0A.txt");
    }

    proptest! {
        #[test]
        fn every_file_name_is_one_parameter_of_the_header(name in "[^/\\x00]{1,40}") {
            prop_assume!(!matches!(name.as_str(), "." | ".."));
            let header = disposition(&Path::new("/tmp").join(&name));
            prop_assert!(http::HeaderValue::from_str(&header).is_ok());
            let value = header.strip_prefix("inline; filename").unwrap();
            let read = if let Some(encoded) = value.strip_prefix("*=utf-8''") {
                percent_encoding::percent_decode_str(encoded).decode_utf8().unwrap().into_owned()
            } else if let Some(quoted) = value.strip_prefix("=\"").and_then(|v| v.strip_suffix('"')) {
                let mut out = String::new();
                let mut chars = quoted.chars();
                while let Some(c) = chars.next() {
                    prop_assert_ne!(c, '"');
                    out.push(if c == '\\' { chars.next().unwrap() } else { c });
                }
                out
            } else {
                value.strip_prefix('=').unwrap().to_owned()
            };
            prop_assert_eq!(read, name);
        }
    }
}
