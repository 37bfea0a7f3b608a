//! What an upload's body flows into: undone compression, a form taken apart, files written.
//!
//! Everything here blocks; [`super::upload`] calls it off the async threads, a few hundred kilobytes at a time.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use flate2::write::MultiGzDecoder;
use serde::Serialize;

use super::error::UploadError;
use super::metadata::Metadata;
use super::multipart::{Event, Parser, PartHead};
use super::negotiate::Coding;
use super::target::Target;
use crate::paths;
use crate::state::State;
use crate::users::User;

/// How files lie in the body.
#[derive(Debug)]
pub(super) enum Form {
    /// The body is the file.
    Raw,
    /// The body is a form with any number of files.
    Multipart(Box<Parser>),
}

/// What is asked for with an upload.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) state: Arc<State>,
    pub(super) user: User,
    pub(super) metadata: Metadata,
    /// Where to, for raw bodies and forms with one file.
    pub(super) path: Option<String>,
    /// How many bytes the one file has at least, if that is known.
    pub(super) announced: Option<u64>,
}

/// A file that was written, as clients see it.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    name: String,
    path: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    #[serde(skip)]
    pub(super) bytes: u64,
}

impl Written {
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// One upload.
#[derive(Debug)]
pub(super) enum Sink {
    Plain(Box<Files>),
    Gzip(Box<MultiGzDecoder<Files>>),
}

impl Sink {
    /// The sink for a body. A raw one opens its file right away, so that an empty body makes an empty file.
    pub(super) fn new(order: Order, form: Form, coding: Coding) -> Result<Self, UploadError> {
        let files = Files::new(order, form)?;
        Ok(match coding {
            Coding::Identity => Self::Plain(Box::new(files)),
            Coding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(files))),
        })
    }

    /// Takes the next bytes of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        match self {
            Self::Plain(files) => files.push(bytes),
            Self::Gzip(decoder) => {
                let done = decoder.write_all(bytes);
                done.map_err(|error| decoder.get_mut().failure.take().unwrap_or(UploadError::Gzip(error)))
            }
        }
    }

    /// The body is complete: the files that were written.
    pub(super) fn finish(self) -> Result<Vec<Written>, UploadError> {
        match self {
            Self::Plain(files) => files.finish(),
            Self::Gzip(mut decoder) => match decoder.try_finish() {
                Ok(()) => decoder.finish().map_err(UploadError::Gzip)?.finish(),
                Err(error) => Err(decoder.get_mut().failure.take().unwrap_or(UploadError::Gzip(error))),
            },
        }
    }
}

/// The files of one upload.
#[derive(Debug)]
pub(super) struct Files {
    form: Form,
    writer: Writer,
    /// Why writing failed, while the decoder in between only knows that it did.
    failure: Option<UploadError>,
}

impl Files {
    fn new(order: Order, form: Form) -> Result<Self, UploadError> {
        let mut writer = Writer { order, open: None, begun: HashSet::new(), done: Vec::new() };
        if matches!(form, Form::Raw) {
            let path = writer.order.path.clone().ok_or(UploadError::NoPath)?;
            writer.begin(&path)?;
        }
        Ok(Self { form, writer, failure: None })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        match &mut self.form {
            Form::Raw => self.writer.write(bytes),
            Form::Multipart(parser) => parser.push(bytes, &mut |event| match event {
                Event::Part(head) => self.writer.part(head),
                Event::Data(data) => self.writer.write(data),
                Event::PartEnd => self.writer.end(),
            }),
        }
    }

    fn finish(mut self) -> Result<Vec<Written>, UploadError> {
        match &self.form {
            Form::Raw => self.writer.end()?,
            Form::Multipart(parser) => parser.finish()?,
        }
        Ok(std::mem::take(&mut self.writer.done))
    }
}

impl Write for Files {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.push(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failure = Some(error);
                Err(io::Error::other("the upload failed"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Writer {
    order: Order,
    /// The file that is being written. None while in a part that is not a file.
    open: Option<(PathBuf, Target)>,
    /// The files so far, for clients that name one twice.
    begun: HashSet<PathBuf>,
    done: Vec<Written>,
}

impl Writer {
    fn part(&mut self, head: PartHead) -> Result<(), UploadError> {
        if head.name.as_deref() != Some("file") {
            return Ok(());
        }
        let path = self.order.path.clone().or(head.filename).ok_or(UploadError::NoFileName)?;
        self.begin(&path)
    }

    fn begin(&mut self, path: &str) -> Result<(), UploadError> {
        let Order { state, user, announced, .. } = &self.order;
        let path = paths::resolve(user, state, path)?;
        if self.begun.contains(&path) {
            return Err(UploadError::Duplicate(path));
        }
        let target = Target::open(&path, user, *announced)?;
        self.begun.insert(path.clone());
        self.open = Some((path, target));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        match &mut self.open {
            Some((_, target)) => target.write(bytes),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), UploadError> {
        let Some((path, target)) = self.open.take() else { return Ok(()) };
        let (metadata, bytes) = target.commit(&self.order.metadata)?;
        self.done.push(Written {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: path.to_string_lossy().into_owned(),
            r#type: "file",
            metadata,
            bytes,
        });
        Ok(())
    }
}

/// The parser for a body with this content type.
pub(super) fn form_of(content_type: &str) -> Result<Form, UploadError> {
    let media = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    match media.as_str() {
        "application/octet-stream" => Ok(Form::Raw),
        _ if media.starts_with("multipart/") => {
            Parser::new(content_type).map(|p| Form::Multipart(Box::new(p))).map_err(UploadError::from)
        }
        _ => Err(UploadError::ContentType(content_type.to_owned())),
    }
}
