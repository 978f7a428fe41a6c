//! Jobs: progress and receipts.

use std::fmt::Display;

use guanxi_model::job::{Job, JobId};
use guanxi_model::{Catalog, Code, Error};

use super::Caller;

/// Jobs that one answer shows.
const LISTED_JOBS_MAX: usize = 1_000;

/// A job, and the catalog that names its kind and node type.
pub async fn get(caller: &Caller<'_>, id: JobId) -> Result<(Job, Catalog), Error> {
    let tenant = caller.tenant;
    let read = caller.read(move |reader| {
        let job = reader.job(tenant, id)?.ok_or_else(|| unknown(id.0))?;
        Ok((job, reader.catalog().clone()))
    });
    read.await
}

pub fn unknown(job: impl Display) -> Error {
    Error::new(Code::NotFound, format!("there is no job '{job}'"))
}

/// The newest jobs, and the catalog that names their kinds and node types.
pub async fn list(caller: &Caller<'_>) -> Result<(Vec<Job>, Catalog), Error> {
    let tenant = caller.tenant;
    let read = caller.read_apart(move |reader| {
        let jobs = reader.jobs(tenant, LISTED_JOBS_MAX)?;
        Ok((jobs, reader.catalog().clone()))
    });
    read.await
}
