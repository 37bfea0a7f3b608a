use proptest::prelude::*;

use super::*;

type Part = (PartHead, Vec<u8>);

fn parse(boundary: &str, chunks: &[&[u8]]) -> Result<Vec<Part>, MultipartError> {
    let mut parser = Parser::new(&format!("multipart/form-data; boundary={boundary}"))?;
    let mut parts: Vec<Part> = Vec::new();
    let mut open = false;
    for chunk in chunks {
        parser.push(chunk, &mut |event| {
            match event {
                Event::Part(head) => {
                    assert!(!open);
                    open = true;
                    parts.push((head, Vec::new()));
                }
                Event::Data(data) => {
                    assert!(open && !data.is_empty());
                    parts.last_mut().unwrap().1.extend_from_slice(data);
                }
                Event::PartEnd => {
                    assert!(open);
                    open = false;
                }
            }
            Ok::<(), MultipartError>(())
        })?;
    }
    parser.finish()?;
    assert!(!open);
    Ok(parts)
}

fn head(name: Option<&str>, filename: Option<&str>) -> PartHead {
    PartHead { name: name.map(str::to_owned), filename: filename.map(str::to_owned) }
}

#[test]
fn a_form_as_sdks_send_it() {
    let form = b"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/a b.txt\"\r\n\
        Content-Type: text/plain\r\n\r\nhello\r\n--X\r\ncontent-disposition: form-data; name=file\r\n\r\n\r\n--X--\r\n";
    let want = vec![
        (head(Some("file"), Some("/tmp/a b.txt")), b"hello".to_vec()),
        (head(Some("file"), None), Vec::new()),
    ];
    assert_eq!(parse("X", &[form]), Ok(want.clone()));
    let bytes: Vec<&[u8]> = form.chunks(1).collect();
    assert_eq!(parse("X", &bytes), Ok(want));
}

#[test]
fn what_only_looks_like_a_delimiter_is_content() {
    let content = b"\r\n--Xy\r\n--X-\r\n--\r\n--X\rx\r\n-\r";
    let form = [b"--X\r\n\r\n", &content[..], b"\r\n--X--"].concat();
    let bytes: Vec<&[u8]> = form.chunks(1).collect();
    for chunks in [&[&form[..]][..], &bytes] {
        assert_eq!(parse("X", chunks), Ok(vec![(head(None, None), content.to_vec())]));
    }
}

#[test]
fn preamble_padding_and_epilogue_are_ignored() {
    let form = b"ignore me\r\n--X \t\r\nA: b\r\n\r\nc\r\n--X--\r\nignore me\r\n--X\r\n";
    assert_eq!(parse("X", &[form]), Ok(vec![(head(None, None), b"c".to_vec())]));
    assert_eq!(parse("X", &[b"--X--"]), Ok(Vec::new()));
}

#[test]
fn an_empty_part_may_share_its_line_end() {
    let form = b"--X\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n--X--\r\n";
    assert_eq!(parse("X", &[form]), Ok(vec![(head(Some("file"), None), Vec::new())]));
}

#[test]
fn broken_forms_are_refused() {
    assert_eq!(parse("X", &[b""]), Err(MultipartError::Truncated));
    assert_eq!(parse("X", &[b"--X\r\n\r\nhello"]), Err(MultipartError::Truncated));
    assert_eq!(parse("X", &[b"--X\r\n\r\nhello\r\n--X"]), Err(MultipartError::Truncated));
    assert_eq!(parse("X", &[b"--X\r\n\xff\r\n\r\n"]), Err(MultipartError::Head));
    assert_eq!(parse("X", &[b"--X junk\r\n"]), Err(MultipartError::Head));
    let long = [&b"--X\r\nA: "[..], &vec![b'a'; MAX_HEAD_BYTES]].concat();
    assert_eq!(parse("X", &[&long]), Err(MultipartError::LongHead));
    let padding = [&b"--X"[..], &[b' '; MAX_PADDING_BYTES]].concat();
    assert_eq!(parse("X", &[&padding]), Err(MultipartError::Head));
    for content_type in ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; x=y"]
    {
        assert_eq!(Parser::new(content_type).err(), Some(MultipartError::Boundary), "{content_type}");
    }
    let long = format!("multipart/form-data; boundary={}", "b".repeat(71));
    assert_eq!(Parser::new(&long).err(), Some(MultipartError::Boundary));
}

#[test]
fn file_names_keep_directories_quotes_and_any_language() {
    let check = |disposition: &str, want: &str| {
        let got = part_head(&format!("\r\nContent-Disposition: {disposition}"));
        assert_eq!(got.filename.as_deref(), Some(want), "{disposition}");
    };
    check(r#"form-data; name="file"; filename="../x/y.txt""#, "../x/y.txt");
    check(r#"form-data; filename="a\"b\\c\d.txt""#, r#"a"b\c\d.txt"#);
    check(r#"form-data; FILENAME="a;b=c""#, "a;b=c");
    check("form-data; filename=plain.txt; name=file", "plain.txt");
    check("form-data; filename=\"\u{e4}\u{4e16}.txt\"", "\u{e4}\u{4e16}.txt");
    check("form-data; filename=\"a.txt\"; filename*=UTF-8''%c3%a4%20b.txt", "\u{e4} b.txt");
    check("form-data; filename=\"a.txt\"; filename*=latin1''%e4", "a.txt");
    check(r#"form-data; flag; filename="unfinished"#, "unfinished");
}

/// What a form comes to: its parts, or what is wrong with it.
fn outcome(form: &[u8], size: usize) -> Result<Vec<Part>, MultipartError> {
    parse("XX", &form.chunks(size.max(1)).collect::<Vec<_>>())
}

#[test]
fn forms_of_the_corpus_mean_the_same_wherever_they_are_cut() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/multipart");
    let mut seen = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let form = std::fs::read(&path).unwrap();
        let whole = outcome(&form, form.len());
        // Byte by byte where that is quick.
        let (sizes, step) = if form.len() < 1000 { (1..20, 1) } else { (990..1000, 1987) };
        for size in sizes {
            assert_eq!(outcome(&form, size), whole, "{} in pieces of {size}", path.display());
        }
        for at in (0..form.len()).step_by(step) {
            let (first, second) = form.split_at(at);
            assert_eq!(parse("XX", &[first, second]), whole, "{} cut at {at}", path.display());
        }
        seen += 1;
    }
    assert!(seen > 10, "the corpus is there");
}

#[test]
fn a_form_inside_a_form_is_content_of_its_part() {
    let inner =
        b"--YY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nz\r\n--YY--\r\n";
    let form = [&b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\nContent-Type: multipart/mixed; boundary=YY\r\n\r\n"[..], inner, b"\r\n--XX--"].concat();
    assert_eq!(outcome(&form, form.len()), Ok(vec![(head(Some("file"), None), inner.to_vec())]));
}

proptest! {
    #[test]
    fn any_content_survives_any_cut(
        parts in proptest::collection::vec(
            (
                proptest::option::of("[^\"\\\\\\r\\n\\x00]{0,20}"),
                proptest::collection::vec(prop_oneof![
                    Just(b"\r\n--Xb".to_vec()), Just(b"\r\n--X".to_vec()), Just(b"\r\n".to_vec()), Just(b"\r".to_vec()),
                    Just(b"--".to_vec()), proptest::collection::vec(any::<u8>(), 0..20),
                ], 0..12),
            ),
            0..4,
        ),
        cuts in proptest::collection::vec(1usize..40, 1..200),
    ) {
        // The boundary cannot occur in the content, as a client makes sure; its beginning can.
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(filename, data)| (head(Some("file"), filename.as_deref()), data.concat()))
            .collect();
        let boundary = "XbOUNDARY";
        prop_assume!(parts.iter().all(|(_, data)| memmem::find(data, boundary.as_bytes()).is_none()));
        let mut form = Vec::new();
        for (head, data) in &parts {
            let filename = head.filename.as_ref().map(|f| format!("; filename=\"{f}\"")).unwrap_or_default();
            form.extend_from_slice(
                format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"{filename}\r\n\r\n").as_bytes(),
            );
            form.extend_from_slice(data);
            form.extend_from_slice(b"\r\n");
        }
        form.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        let mut chunks = Vec::new();
        let mut rest = &form[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, more) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = more;
        }
        prop_assert_eq!(parse(boundary, &chunks), Ok(parts));
    }

    #[test]
    fn no_bytes_can_make_the_parser_panic_or_hoard(chunks in proptest::collection::vec(
        prop_oneof![
            Just(b"--X".to_vec()), Just(b"\r\n--X".to_vec()), Just(b"\r\n\r\n".to_vec()), Just(b"--".to_vec()),
            Just(b"content-disposition:form-data;filename=\"".to_vec()), proptest::collection::vec(any::<u8>(), 0..64),
        ], 0..40)
    ) {
        let mut parser = Parser::new("multipart/form-data; boundary=X").unwrap();
        for chunk in &chunks {
            if parser.push(chunk, &mut |_| Ok::<(), MultipartError>(())).is_err() {
                break;
            }
            prop_assert!(parser.held.len() <= MAX_HEAD_BYTES + 64);
        }
    }
}
