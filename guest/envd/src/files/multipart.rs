//! `multipart/form-data`, taken apart while it arrives.
//!
//! The parser is fed chunks of any size and hands on slices of them, so that a file of any size passes through in
//! constant memory. It holds back only what may turn out to be part of a delimiter, or an unfinished head of a part.

use memchr::memmem;

/// The head of a part may be this large.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// White space after a delimiter.
const MAX_PADDING_BYTES: usize = 256;
/// The protocol's own bound.
const MAX_BOUNDARY_BYTES: usize = 70;

/// What is wrong with a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MultipartError {
    #[error("the content type names no valid boundary")]
    Boundary,
    #[error("the head of a part is longer than {MAX_HEAD_BYTES} bytes")]
    LongHead,
    #[error("the head of a part cannot be read")]
    Head,
    #[error("the form ends before its last delimiter")]
    Truncated,
}

/// What names a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PartHead {
    /// The field.
    pub(super) name: Option<String>,
    /// The whole file name as sent, directories included.
    pub(super) filename: Option<String>,
}

/// What the parser has found, in the order of the form.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// A part begins.
    Part(PartHead),
    /// More of its content; never empty.
    Data(&'a [u8]),
    /// The part is complete.
    PartEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first delimiter; what is there is ignored.
    Preamble,
    /// After a delimiter, before the end of its line.
    Delimiter,
    Head,
    Data,
    /// After the last delimiter; what is there is ignored.
    Epilogue,
}

/// What comes after something that looks like a delimiter.
enum After {
    Unknown,
    NotADelimiter,
    Delimiter,
}

/// The state of one form.
#[derive(Debug)]
pub(super) struct Parser {
    /// `\r\n--boundary`.
    delimiter: Vec<u8>,
    finder: memmem::Finder<'static>,
    place: Place,
    held: Vec<u8>,
}

impl Parser {
    /// A parser for the form that `content_type` announces.
    ///
    /// # Errors
    /// [`MultipartError::Boundary`].
    pub(super) fn new(content_type: &str) -> Result<Self, MultipartError> {
        let boundary = parameters(content_type)
            .find(|(key, _)| key.eq_ignore_ascii_case("boundary"))
            .map(|(_, value)| value)
            .filter(|b| (1..=MAX_BOUNDARY_BYTES).contains(&b.len()) && !b.contains(['\r', '\n']))
            .ok_or(MultipartError::Boundary)?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        let finder = memmem::Finder::new(&delimiter).into_owned();
        // The first delimiter may be at the very start, without a line before it.
        Ok(Self { delimiter, finder, place: Place::Preamble, held: b"\r\n".to_vec() })
    }

    /// Takes the next bytes of the form and calls `on` with what they contain.
    ///
    /// # Errors
    /// What `on` returns, or what is wrong with the form. The parser is of no use afterwards.
    pub(super) fn push<E: From<MultipartError>>(
        &mut self,
        chunk: &[u8],
        on: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.held.is_empty() {
            return self.take(chunk, on);
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(chunk);
        self.take(&all, on)
    }

    /// The form has no more bytes.
    ///
    /// # Errors
    /// [`MultipartError::Truncated`].
    pub(super) fn finish(&self) -> Result<(), MultipartError> {
        if self.place == Place::Epilogue { Ok(()) } else { Err(MultipartError::Truncated) }
    }

    fn take<E: From<MultipartError>>(
        &mut self,
        mut data: &[u8],
        on: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let rest = match self.place {
                Place::Epilogue => return Ok(()),
                Place::Preamble | Place::Data => self.content(data, on)?,
                Place::Delimiter => self.delimiter_line(data)?,
                Place::Head => self.head(data, on)?,
            };
            match rest {
                Some(rest) => data = rest,
                None => return Ok(()),
            }
        }
    }

    /// Content up to the next delimiter. `None` when more bytes are needed.
    fn content<'d, E: From<MultipartError>>(
        &mut self,
        data: &'d [u8],
        on: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<Option<&'d [u8]>, E> {
        let in_part = self.place == Place::Data;
        let mut emit =
            |bytes: &[u8]| if in_part && !bytes.is_empty() { on(Event::Data(bytes)) } else { Ok(()) };
        let mut from = 0;
        while let Some(at) = self.finder.find(data.get(from..).unwrap_or_default()).map(|at| from + at) {
            let (before, found) = data.split_at(at);
            let after = found.get(self.delimiter.len()..).unwrap_or_default();
            match after_delimiter(after) {
                After::Delimiter => {
                    emit(before)?;
                    if in_part {
                        on(Event::PartEnd)?;
                    }
                    self.place = Place::Delimiter;
                    return Ok(Some(after));
                }
                After::NotADelimiter => from = at + 1,
                After::Unknown => {
                    emit(before)?;
                    self.held = found.to_vec();
                    return Ok(None);
                }
            }
        }
        let (sure, unsure) = data.split_at(data.len() - self.possible_start(data));
        emit(sure)?;
        self.held = unsure.to_vec();
        Ok(None)
    }

    /// How many bytes at the end of `data` may be the start of a delimiter.
    fn possible_start(&self, data: &[u8]) -> usize {
        let longest = data.len().min(self.delimiter.len() - 1);
        let tail = data.get(data.len() - longest..).unwrap_or_default();
        memchr::memchr_iter(b'\r', tail)
            .map(|at| tail.get(at..).unwrap_or_default())
            .find(|suffix| self.delimiter.starts_with(suffix))
            .map_or(0, <[u8]>::len)
    }

    /// The rest of a delimiter's line.
    fn delimiter_line<'d>(&mut self, data: &'d [u8]) -> Result<Option<&'d [u8]>, MultipartError> {
        if data.starts_with(b"--") {
            self.place = Place::Epilogue;
            return Ok(None);
        }
        match memmem::find(data, b"\r\n") {
            Some(at) if data.iter().take(at).all(|b| is_padding(*b)) => {
                self.place = Place::Head;
                // A part without any header has its empty line right here.
                Ok(data.get(at..))
            }
            None if data.len() < MAX_PADDING_BYTES => {
                self.held = data.to_vec();
                Ok(None)
            }
            _ => Err(MultipartError::Head),
        }
    }

    /// The head of a part. `data` starts with the line end before it.
    fn head<'d, E: From<MultipartError>>(
        &mut self,
        data: &'d [u8],
        on: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<Option<&'d [u8]>, E> {
        let Some(end) = memmem::find(data, b"\r\n\r\n") else {
            if data.len() > MAX_HEAD_BYTES {
                return Err(MultipartError::LongHead.into());
            }
            self.held = data.to_vec();
            return Ok(None);
        };
        if end > MAX_HEAD_BYTES {
            return Err(MultipartError::LongHead.into());
        }
        let head =
            std::str::from_utf8(data.get(..end).unwrap_or_default()).map_err(|_| MultipartError::Head)?;
        let content = data.get(end + 4..).unwrap_or_default();
        let shares_line_end = match self.shared_delimiter(content) {
            After::Unknown => {
                self.held = data.to_vec();
                return Ok(None);
            }
            After::Delimiter => true,
            After::NotADelimiter => false,
        };
        on(Event::Part(part_head(head)))?;
        self.place = Place::Data;
        Ok(if shares_line_end { data.get(end + 2..) } else { Some(content) })
    }

    /// Whether a delimiter comes right after a head, sharing its line end: some clients send empty parts so.
    fn shared_delimiter(&self, content: &[u8]) -> After {
        let bare = self.delimiter.get(2..).unwrap_or_default();
        match content.strip_prefix(bare) {
            Some(after) => after_delimiter(after),
            None if bare.starts_with(content) => After::Unknown,
            None => After::NotADelimiter,
        }
    }
}

fn is_padding(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn after_delimiter(after: &[u8]) -> After {
    match after {
        [] | [b'-' | b'\r'] => After::Unknown,
        [b'-', b'-', ..] | [b'\r', b'\n', ..] => After::Delimiter,
        [first, ..] if is_padding(*first) => After::Delimiter,
        _ => After::NotADelimiter,
    }
}

fn part_head(head: &str) -> PartHead {
    let disposition = head
        .split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
        .map_or("", |(_, value)| value);
    let mut part = PartHead::default();
    let mut extended = None;
    for (key, value) in parameters(disposition) {
        match key.to_ascii_lowercase().as_str() {
            "name" => part.name = part.name.or(Some(value)),
            "filename" => part.filename = part.filename.or(Some(value)),
            "filename*" => extended = extended.or_else(|| decode_extended(&value)),
            _ => {}
        }
    }
    part.filename = extended.or(part.filename);
    part
}

/// `utf-8''percent%20encoded`.
fn decode_extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(Into::into)
}

/// The parameters of a header like `form-data; name="file"; filename="a b"`.
fn parameters(header: &str) -> impl Iterator<Item = (&str, String)> {
    let mut rest = header.find(';').and_then(|at| header.get(at..)).unwrap_or("");
    std::iter::from_fn(move || {
        loop {
            let (key, after) = rest.trim_start_matches([';', ' ', '\t']).split_once('=')?;
            let (value, after) = match after.trim_start().strip_prefix('"') {
                Some(quoted) => unquote(quoted),
                None => {
                    let end = after.find(';').unwrap_or(after.len());
                    let (value, after) = after.split_at(end);
                    (value.trim().to_owned(), after)
                }
            };
            rest = after;
            // A flag without a value may stand before the key.
            let key = key.rsplit(';').next().unwrap_or(key).trim();
            if !key.is_empty() {
                return Some((key, value));
            }
        }
    })
}

/// A quoted value after its first quote, and what follows it. A backslash escapes a quote and itself only, since
/// some clients send Windows paths unescaped.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, quoted.get(at + 1..).unwrap_or("")),
            '\\' => match chars.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                Some((_, escaped)) => value.push(escaped),
                None => value.push('\\'),
            },
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
