//! Jobs: progress and receipts.

use std::fmt::Display;

use guanxi_engine::JobsPage;
use guanxi_model::job::{Job, JobId};
use guanxi_model::{Catalog, Code, Error};

use super::Caller;

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

/// A page of jobs, and the catalog that names their kinds and node types.
pub async fn list(
    caller: &Caller<'_>,
    limit: usize,
    cursor: Option<String>,
) -> Result<(JobsPage, Catalog), Error> {
    let tenant = caller.tenant;
    let read = caller.read_apart(move |reader| {
        let jobs = reader.jobs(tenant, limit, cursor.as_deref())?;
        Ok((jobs, reader.catalog().clone()))
    });
    read.await
}
