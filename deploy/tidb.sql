-- Run by TiDB at its first start, for compose.yaml: a database and a user of its own.
-- The password stands in compose.yaml as well; nothing outside its network reaches either.
CREATE DATABASE IF NOT EXISTS guanxi;
CREATE USER IF NOT EXISTS 'guanxi'@'%' IDENTIFIED BY 'guanxi';
GRANT ALL ON guanxi.* TO 'guanxi'@'%';
