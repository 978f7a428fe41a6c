//! Jobs: progress and receipts.

use std::fmt::Display;

use guanxi_api::jobs::{JobView, Jobs, ListJobs};
use guanxi_model::job::JobId;
use guanxi_model::limits::PAGE_ITEMS_DEFAULT;
use guanxi_model::{Code, Error};

use super::Caller;

pub async fn get(caller: Caller, id: JobId) -> Result<JobView, Error> {
    let (tenant, remains) = (caller.tenant, caller.app.deployment.remains());
    let read = caller.read(move |reader| {
        let job = reader.job(tenant, id)?.ok_or_else(|| unknown(id.0))?;
        Ok(JobView::new(&job, tenant, reader.catalog(), remains))
    });
    read.await
}

pub fn unknown(job: impl Display) -> Error {
    Error::new(Code::NotFound, format!("there is no job '{job}'"))
}

/// Jobs, the newest first.
pub async fn list(caller: Caller, request: ListJobs) -> Result<Jobs, Error> {
    let (tenant, remains) = (caller.tenant, caller.app.deployment.remains());
    let limit = request.limit.unwrap_or(PAGE_ITEMS_DEFAULT);
    let read = caller.read_list(false, move |reader| {
        let page = reader.jobs(tenant, limit, request.cursor.as_deref())?;
        let catalog = reader.catalog();
        let jobs = page.jobs.iter().map(|job| JobView::new(job, tenant, catalog, remains));
        Ok(Jobs { jobs: jobs.collect(), next: page.next })
    });
    read.await
}
